"""Contact sheets of a model in training, decoded code by code: for looking at, not for speed.

The decoders of :mod:`mmspec.runner` are what to use a finished model with.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from diffusers import VQModel
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerFast

from mmspec.training.captions import prefix_mask, tokenize
from mmspec.training.llamagen import CaptionedDecoder
from mmspec.training.vq import decode_codes


@torch.no_grad()
def generate_codes(
    model: CaptionedDecoder,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    num_codes: int,
    guidance_scale: float = 3.0,
    temperature: float = 1.0,
    top_k: int = 100,
    seed: int = 0,
) -> Tensor:
    """Sample ``num_codes`` codes a prompt, (R, num_codes); ``temperature=0`` takes the likeliest ones.

    With guidance g > 1 the logits are ``null + g * (caption - null)``, the null caption under the caption's mask.
    """
    net, generator = model.transformer, torch.Generator().manual_seed(seed)
    features, mask = model.captions(*tokenize(tokenizer, prompts, net.config.condition_length))
    if guided := guidance_scale > 1:
        features = torch.cat([features, net.null_caption.expand_as(features)])
        mask = torch.cat([mask, mask])
    cache, length, codes = DynamicCache(), mask.shape[1], []
    output = net(
        caption_embeds=features,
        position_ids=torch.arange(length)[None],
        attention_mask=prefix_mask(mask, 0),
        cache=cache,
        num_logits=1,
    )
    for position in range(length, length + num_codes):
        logits = output.logits[:, -1]
        if guided:
            caption, null = logits.chunk(2)
            logits = null + guidance_scale * (caption - null)
        codes.append(_draw(logits, temperature, top_k, generator))
        rows = torch.cat([codes[-1], codes[-1]]) if guided else codes[-1]
        keys = torch.cat([mask, mask.new_ones(len(mask), position + 1 - length)], dim=1)[:, None, None]
        output = net(rows[:, None], position_ids=torch.tensor([[position]]), attention_mask=keys, cache=cache)
    return torch.stack(codes, dim=1)


def _draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1)
    kept, indices = (logits / temperature).topk(min(top_k, logits.shape[-1]))
    return indices.gather(-1, torch.multinomial(kept.softmax(dim=-1), 1, generator=generator))[:, 0]


def draw_sheet(images: np.ndarray, captions: list[str], path: Path, columns: int = 10, zoom: int = 2) -> None:
    """Write uint8 images (n, S, S, 3) as a grid with a caption under each."""
    side, rows = images.shape[1] * zoom, math.ceil(len(images) / columns)
    cell = (side + 8, side + 20)
    sheet = Image.new("RGB", (columns * cell[0], rows * cell[1]), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (image, text) in enumerate(zip(images, captions, strict=True)):
        left, top = index % columns * cell[0] + 4, index // columns * cell[1]
        sheet.paste(Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST), (left, top))
        draw.text((left, top + side + 2), text[: side // 6], fill="black")
    sheet.save(path)


def preview(
    model: CaptionedDecoder,
    tokenizer: PreTrainedTokenizerFast,
    vq: VQModel,
    prompts: list[str],
    path: Path,
    *,
    guidance_scale: float = 3.0,
    temperature: float = 1.0,
    top_k: int = 100,
    seed: int = 0,
) -> Path:
    """Draw one image a prompt to the PNG ``path``."""
    config = model.transformer.config
    count = config.grid_height * config.grid_width
    codes = generate_codes(model, tokenizer, prompts, count, guidance_scale, temperature, top_k, seed)
    draw_sheet(decode_codes(vq, codes), prompts, path)
    return path
