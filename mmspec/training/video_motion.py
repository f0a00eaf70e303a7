"""How well a video model keeps a motion: the way of the sprite's centre, against that of the clip it should make.

The centre of a frame is the mean place of its pixels, weighted by how far they are from white.

Symbols: n clips, F frames, S side in pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.training.video_clips import ClipSet


def centres(frames: np.ndarray) -> np.ndarray:
    """Row and column of the centre of every frame (n, F, 2), in pixels, of ``frames`` (n, F, S, S, 3), uint8.

    The centre of a white frame is that of the picture.
    """
    weight = 255.0 - frames.min(axis=-1)  # (n, F, S, S)
    weight = np.where(weight < 16, 0.0, weight) + 1e-6
    size = frames.shape[2]
    place = np.arange(size)
    total = weight.sum(axis=(2, 3))
    rows, columns = (weight.sum(axis=axis) @ place / total for axis in (3, 2))
    return np.stack([rows, columns], axis=-1)


def motion_errors(pipe: Any, clips: ClipSet, chosen: np.ndarray, seed: int = 0, batch: int = 16) -> dict[str, float]:
    """Mean distance in pixels between the centres of generated and true clips, over the frames after the first.

    Args:
        pipe: A video pipeline at its own settings.
        clips: The data.
        chosen: Which clips to make, from their first frame and documented caption.
        seed: Clip i has the seed ``seed + i``.
        batch: Clips decoded together.

    Returns:
        ``motion_error``; ``still_error``, of a clip that repeats the first frame; and ``sprite_error``, the mean absolute
        difference of pixels in [0, 1].
    """
    made, truth = [], clips.render(chosen)
    for start in range(0, len(chosen), batch):
        part = chosen[start : start + batch]
        output = pipe(
            image=list(truth[start : start + batch, 0]),
            prompt=[clips.plain_caption(clip) for clip in part],
            seed=[seed + start + row for row in range(len(part))],
            output_type="np",
        )
        made.append((output.frames * 255).round().astype(np.uint8))
    clips_made = np.concatenate(made)
    wanted, still = centres(truth), centres(truth[:, :1])
    return {
        "clips": len(chosen),
        "motion_error": _mean_distance(centres(clips_made), wanted),
        "still_error": _mean_distance(np.broadcast_to(still, wanted.shape), wanted),
        "sprite_error": float(np.abs(clips_made.astype(float) - truth).mean() / 255),
    }


def _mean_distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.linalg.norm(first[:, 1:] - second[:, 1:], axis=-1).mean())
