"""Draw the contact sheet and the animation of the video documentation: the checkpoint's own samples, continued.

Usage: python demos/video_sheet.py [SHEET.png [CLIPS.gif]]
"""

import sys
from pathlib import Path

from PIL import Image, ImageDraw

from mmspec import VideoPipeline
from mmspec.bench.video import read_samples
from mmspec.image.video_files import encode_gif
from mmspec.models.loading import local_folder

SCALE, GAP, LABEL = 2, 4, 16


def main(sheet: Path, clips: Path) -> None:
    folder = local_folder("mmspec/tiny-video")
    assert folder is not None
    samples = read_samples(folder)[:8]
    pipe = VideoPipeline.from_pretrained(folder)
    frames = pipe([str(path) for path, _ in samples], prompt=[text for _, text in samples], seed=0).frames
    large = [
        [f.resize((f.width * SCALE, f.height * SCALE), Image.Resampling.NEAREST) for f in clip] for clip in frames
    ]
    side, count = large[0][0].width, len(large[0])
    drawn = Image.new("RGB", (count * (side + GAP) + GAP, len(large) * (side + LABEL + GAP) + GAP), "white")
    draw = ImageDraw.Draw(drawn)
    for row, (clip, (_, text)) in enumerate(zip(large, samples, strict=True)):
        top = GAP + row * (side + LABEL + GAP)
        draw.text((GAP, top), f"{text} (the first frame is given)", fill="black")
        for column, frame in enumerate(clip):
            left = GAP + column * (side + GAP)
            drawn.paste(frame, (left, top + LABEL))
            draw.rectangle((left - 1, top + LABEL - 1, left + side, top + LABEL + side), outline="#ccc")
    drawn.save(sheet)
    clips.write_bytes(encode_gif([beside([clip[i] for clip in large]) for i in range(count)], pipe.config.fps))


def beside(frames: list[Image.Image]) -> Image.Image:
    """Frames of one time, four in a row."""
    side = frames[0].width
    canvas = Image.new("RGB", (4 * (side + GAP), -(-len(frames) // 4) * (side + GAP)), "#ddd")
    for number, frame in enumerate(frames):
        canvas.paste(frame, (number % 4 * (side + GAP), number // 4 * (side + GAP)))
    return canvas


if __name__ == "__main__":
    names = sys.argv[1:]
    main(Path(names[0] if names else "docs/video-sheet.png"), Path(names[1] if len(names) > 1 else "docs/video.gif"))
