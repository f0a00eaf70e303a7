"""Frames in and out of the video pipeline: which numbers of frames there are, context frames to codes, codes to frames.

Symbols: F frames, T latent frames, c latent frames of the context, B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.video_processor import VideoProcessor
from PIL import Image
from torch import Tensor

from mmspec.image.video_files import cover, encode_gif, encode_mp4, read_frames, to_tensor
from mmspec.image.video_grid import VideoGrid
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.pipelines.video_call import VideoCall


@dataclass(frozen=True)
class ClipPlan:
    """Lengths of one call: ``context`` latent frames are given, the clip has ``total``, decoded ``native`` at a time."""

    context: int
    total: int
    native: int

    @property
    def stretches(self) -> list[int]:
        """New latent frames of each stretch; every later one continues the last ``context`` frames so far."""
        left, parts = self.total - self.context, []
        while left:
            parts.append(min(left, self.native - self.context))
            left -= parts[-1]
        return parts


def plan_clip(
    call: VideoCall, tokenizer: DiscreteVideoTokenizer, native: int, most_context: int, given: int
) -> ClipPlan:
    """The lengths that ``call`` asks for, of ``given`` frames of input.

    Args:
        call: The call.
        tokenizer: Says which numbers of frames there are.
        native: Latent frames of the clips that the decoder was trained on.
        most_context: Most latent frames of a context.
        given: Frames of the shortest input.

    Raises:
        ValueError: For a number of frames that there is not, with those that there are.
    """
    context = _context(call, tokenizer, min(most_context, native - 1), given)
    longest = tokenizer.pixel_frames(native)
    wanted = longest if call.num_frames is None else call.num_frames
    legal = [tokenizer.pixel_frames(t) for t in range(context + 1, native + 1)]
    if wanted not in legal:
        if wanted > longest and not call.extend:
            raise ValueError(
                f"`num_frames` is {wanted}, but this model makes clips of at most {longest} frames. Pass `extend=True` to "
                "go on beyond it, which is outside its training."
            )
        if wanted <= tokenizer.pixel_frames(context) or (wanted - 1) % tokenizer.config.temporal_compression:
            more = f", and with `extend=True` also {longest + tokenizer.config.temporal_compression}, ..."
            raise ValueError(
                f"`num_frames` is {wanted}; legal with {tokenizer.pixel_frames(context)} context frames are "
                f"{', '.join(map(str, legal))}{more}"
            )
    return ClipPlan(context, tokenizer.latent_frames(wanted), native)


def _context(call: VideoCall, tokenizer: DiscreteVideoTokenizer, most: int, given: int) -> int:
    """Latent frames of the context: those asked for, or as many as the input has."""
    legal = [tokenizer.pixel_frames(c) for c in range(1, most + 1)]
    if call.context_frames is None:
        return 1 if call.image is not None else max(i + 1 for i, frames in enumerate(legal) if frames <= given)
    if call.context_frames not in legal or call.context_frames > given:
        raise ValueError(
            f"`context_frames` is {call.context_frames}, of {given} given; legal are {', '.join(map(str, legal))}, at "
            "most what the input has."
        )
    return legal.index(call.context_frames) + 1


def read_inputs(call: VideoCall) -> list[np.ndarray]:
    """The pictures or clips of ``call`` as uint8 frames (F, h, w, 3) each.

    ``image`` is one picture or a list of them; ``video`` one clip or a list of clips, a list of pictures being one clip.

    Raises:
        TypeError, ValueError, FileNotFoundError: If one cannot be read.
    """
    if call.image is not None:
        pictures = call.image if isinstance(call.image, (list, tuple)) else [call.image]
        if not pictures:
            raise ValueError("`image` is empty; give at least one picture.")
        inputs = [read_frames(picture) for picture in pictures]
        if longer := [len(frames) for frames in inputs if len(frames) > 1]:
            raise ValueError(f"`image` must be single pictures, got a clip of {longer[0]} frames; give it as `video`.")
        return inputs
    video = call.video
    several = isinstance(video, (list, tuple)) and bool(video) and not isinstance(video[0], Image.Image)
    several = several and not (isinstance(video[0], (np.ndarray, Tensor)) and video[0].ndim == 3)
    return [read_frames(clip) for clip in video] if several else [read_frames(video)]


@torch.no_grad()
def encode_context(
    inputs: Sequence[np.ndarray],
    num_frames: int,
    size: tuple[int, int],
    tokenizer: DiscreteVideoTokenizer,
    device: Any,
) -> Tensor:
    """Codes (B, c * H * W) of the last ``num_frames`` of each input, resized and cropped to ``size``."""
    rows = []
    for frames in inputs:  # one by one: a batch rounds differently, so codes would depend on it
        clip = to_tensor(cover(frames[-num_frames:], *size))
        rows.append(tokenizer.encode(clip.to(device)).flatten(1))
    return torch.cat(rows)


@torch.no_grad()
def decode_stretch(
    context: Tensor, new: Tensor, grid: VideoGrid, tokenizer: DiscreteVideoTokenizer, device: Any, first: bool
) -> Tensor:
    """Frames (B, 3, F, h, w) in [-1, 1] of a stretch: ``context`` codes and the complete latent frames of ``new``.

    The frames of the context are part of the ``first`` stretch only; a later one has shown them already.
    """
    codes = torch.cat([grid.codes(context.cpu()), grid.codes(new.cpu())], dim=1)
    shown = 0 if first else tokenizer.pixel_frames(grid.codes(context).shape[1])
    return torch.cat([tokenizer.decode(one.to(device))[:, :, shown:].cpu() for one in codes.split(1)])


def postprocess(videos: Tensor, output_type: str, fps: float, factor: int) -> Any:
    """Videos (B, 3, F, h, w) in [-1, 1] as what ``output_type`` names."""
    processor = VideoProcessor(vae_scale_factor=factor)
    if output_type in ("np", "pt"):
        return processor.postprocess_video(videos, output_type)
    clips = processor.postprocess_video(videos, "pil")
    if output_type == "pil":
        return clips
    write = encode_mp4 if output_type == "mp4" else encode_gif
    return [write(clip, fps) for clip in clips]
