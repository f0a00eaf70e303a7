"""Draw the contact sheet of the README: the checkpoint's fixed prompts, one picture each.

Usage: python demos/contact_sheet.py [OUTPUT.png]
"""

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from mmspec import LlamaGenPipeline
from mmspec.models.loading import local_folder

SCALE, COLUMNS, LABEL = 3, 5, 28


def main(output: Path) -> None:
    folder = local_folder("mmspec/emoji-t2i")
    assert folder is not None
    prompts = json.loads((folder / "prompts.json").read_text())
    pipe = LlamaGenPipeline.from_pretrained(folder)
    images = pipe(prompts, seed=0, micro_batch_size=5).images
    side = images[0].width * SCALE
    rows = -(-len(images) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (side + 8) + 8, rows * (side + LABEL + 8) + 8), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (prompt, image) in enumerate(zip(prompts, images, strict=True)):
        left = 8 + number % COLUMNS * (side + 8)
        top = 8 + number // COLUMNS * (side + LABEL + 8)
        sheet.paste(image.resize((side, side), Image.Resampling.LANCZOS), (left, top))
        label = prompt.replace(", ", "\n", 1)
        draw.multiline_text((left + side / 2, top + side + 2), label, fill="black", anchor="ma", align="center")
    sheet.save(output)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demos/contact_sheet.png"))
