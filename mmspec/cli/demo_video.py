"""The video part of ``mmspec demo``: pictures set in motion, plainly and speculatively."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.demo_rows import Row, Twice
from mmspec.cli.loading import load_video_pipeline
from mmspec.cli.output import tell_files
from mmspec.cli.video import DEFAULT_VIDEO_MODEL


def continue_pictures(
    count: int, out: Path, seed: int = 0, device: str = "auto", model: str = DEFAULT_VIDEO_MODEL
) -> Row:
    """Continue ``count`` of the pictures that come with ``model`` both ways and write GIF files to ``out``.

    Raises:
        ValueError: If ``model`` comes without pictures.
    """
    import torch

    from mmspec.bench.video import read_samples
    from mmspec.models.loading import local_folder

    samples = read_samples(local_folder(model) or Path(model))[:count]
    pipe = load_video_pipeline(model, device)
    pipe.set_progress_bar_config(disable=True)
    pipe(str(samples[0][0]), prompt=samples[0][1], seed=seed, output_type="tokens")  # warm-up
    out.mkdir(parents=True, exist_ok=True)
    pairs, paths = [], []
    for number, (path, text) in enumerate(samples):
        plain, fast = (
            pipe(str(path), prompt=text, seed=seed + number, speculate=on, output_type="gif") for on in (False, True)
        )
        pairs.append(Twice(path.name, plain, fast, torch.equal(plain.tokens, fast.tokens)))
        paths.append(out / f"clip-{number + 1}.gif")
        paths[-1].write_bytes(fast.frames[0])
    tell_files(paths)
    return Row.of("video", pairs)
