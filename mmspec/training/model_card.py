"""The model card of the embedded text-to-image checkpoint, filled with what was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from diffusers import VQModel

from mmspec.training.llamagen import CaptionedDecoder, LlamaGenConfig
from mmspec.training.loop import LoopConfig
from mmspec.training.vq import VQConfig

Stage = tuple[LlamaGenConfig, dict[str, float]]
"""A training and its steps and minutes."""

MODEL_CARD = """\
---
license: apache-2.0
library_name: mmspec
pipeline_tag: text-to-image
tags: [image-generation, autoregressive, speculative-decoding]
---

# mmspec/emoji-t2i

A very small LlamaGen-style text-to-image model: {pixels} x {pixels} pixel emoji from captions such as
"red apple, noto style". It exists so that mmspec's demonstration, tests and benchmarks run a real, trained
autoregressive image model anywhere, in seconds, without a download.

**It is deliberately over-fitted.** It learnt {names} emoji in three drawing styles ({drawings} pictures) nearly by
heart; it draws those, seldom mixes them and knows nothing else. Do not judge image quality, or what speculative
decoding gives on large models, by it.

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `transformer` | LlamaGen decoder: {layers} layers, width {width}, 2-D rotary positions, {grid} x {grid} codes | {decoder_parameters:,} | float16 |
| `vq` | diffusers `VQModel`: factor 4, {codes} codes of {code_dim} numbers | {vq_parameters:,} | float16 |
| `text_encoder` | T5 encoder, trained jointly from scratch | {text_parameters:,} | float16 |
| `tokenizer` | byte-level BPE, {pieces} pieces, ignores case and punctuation | | |

Run it in float32 on processors. `model_index.json` holds the recommended guidance, temperature and top-k.

## Captions

* `"<name>, <style> style"`, the form most trained on; `"<name>"`, `"<name>, <class>, <style> style"` and
  `"<class>, <style> style"` work as well. Styles: noto, twemoji, fluent. Names are those of the icon packages with
  spaces for hyphens, and everyday short forms ("dog", "car", "apple"); `mmspec/training/names.py` lists all (`ICONIC`).
* Or a class alone: {classes} (class ids 0, 1, ... in this order).
* At most {slots} tokens. `prompts.json` holds the twenty prompts of the contact sheet.

## Training

{samples:,} samples in {minutes:.0f} minutes, after {vq_minutes:.0f} minutes for the tokenizer,
on two shared cores of a server processor with AMX, bf16 autocast. AdamW, cosine schedule, running average of the
weights. Commands, about {total:.1f} hours; each can be interrupted and resumed:

```python
from mmspec.training import export, llamagen, vq
from mmspec.training.corruption import Corruption

{commands}
```

The result depends on how fast the machine is, because the limits are minutes; give `steps` instead to get the same
weights again.

**Conditions.** 44 % name and style, 24 % name, 9 % name, class and style, 5 % class and style, 8 % a class id,
10 % nothing (8 % the null caption under a caption's mask, 2 % the null class), for guidance.

**Corrupted contexts.** Part of the samples saw wrong input codes with right targets. *Lost*: at least about four codes
of five replaced, in half of these samples by the codes of one other picture. *Suffix*: a clean prefix of random
length, after which each code was replaced with a probability from [0.5, 1]. *Scattered*: each code was replaced with a
probability from [0, 0.5]. A replaced code became a random one, its left neighbour, the one above (these two not in
lost contexts, where they would give the picture away), or that of another picture at the same place.

{stages}

Clean codes alone identify one of so few pictures, and a model that always sees some ignores the caption; lost contexts
make it read. It then leans on caption and position: one odd sample does not spoil the picture, and Jacobi-style
decoding, which feeds the model its own unsettled guesses, settles in few iterations. **Acceptance rates and speed-ups
measured with this model are therefore higher than those of large models trained on natural images.**

## Measured

| what | value |
| --- | --- |
| tokenizer: PSNR on {held_out_count} drawings of things it never saw | {held_out_psnr:.2f} dB |
| tokenizer: PSNR on the drawings of the decoder | {listed_psnr:.2f} dB |
| tokenizer: codes used, entropy of their use | {codes_used} of {codes}, {code_entropy:.2f} bits |
| decoder: cross-entropy of a training drawing's codes, "name, style style", clean context | {caption_loss:.3f} nats a code |
| decoder: likeliest code right, same caption and context | {caption_accuracy:.1%} |
| the same, after the codes of another drawing (only the caption helps) | {other_context_accuracy:.1%} |
| the same, under the caption of another drawing (only the context helps) | {other_caption_accuracy:.1%} |
| decoder: entropy of its predictions | {caption_entropy_bits:.3f} bits a code |

{assessment}

## Data and licences

Drawings, rasterised on white; skin tones, people, flags and symbols left out. The drawings are not part of this
distribution, but the model can redraw them, so `NOTICE` travels with it.

| style | project | npm package | licence |
| --- | --- | --- | --- |
| noto | Noto Emoji, Google | `@iconify-json/noto` 1.2.9 | Apache-2.0 |
| twemoji | Twemoji, Twitter and contributors | `@iconify-json/twemoji` 1.2.5 | CC-BY-4.0 (attribution) |
| fluent | Fluent Emoji (flat), Microsoft | `@iconify-json/fluent-emoji-flat` 1.2.6 | MIT |
"""


def model_card(
    model: CaptionedDecoder,
    vq: VQModel,
    vq_config: VQConfig,
    stages: Sequence[Stage],
    training: dict[str, Any],
    assessment: str,
) -> str:
    """The card of a trained model.

    Args:
        model, vq: The networks.
        vq_config: The tokenizer's training.
        stages: The decoder's trainings and how far each came, first to last.
        training: What was measured: ``tokenizer`` and ``decoder``.
        assessment: Paragraph on what the pictures look like.
    """
    config = stages[-1][0]
    values = _sizes(model, vq, config) | _measurements(training, vq_config) | _recipe(stages, vq_config, training)
    return MODEL_CARD.format(**values, assessment=assessment.strip())


def _sizes(model: CaptionedDecoder, vq: VQModel, config: LlamaGenConfig) -> dict[str, Any]:
    return {
        "pixels": vq.config.sample_size,
        "names": len(config.names),
        "layers": config.num_layers,
        "width": config.hidden_size,
        "grid": model.transformer.config.grid_width,
        "decoder_parameters": model.transformer.num_parameters(),
        "codes": vq.config.num_vq_embeddings,
        "code_dim": vq.config.vq_embed_dim,
        "vq_parameters": vq.num_parameters(),
        "text_parameters": model.text_encoder.num_parameters(),
        "pieces": config.text_vocab_size,
        "classes": ", ".join(config.classes),
        "slots": config.condition_length,
    }


def _measurements(training: dict[str, Any], vq_config: VQConfig) -> dict[str, Any]:
    codes = training["tokenizer"]
    return {
        "held_out_count": vq_config.num_held_out,
        "held_out_psnr": codes["held_out"]["psnr"],
        "listed_psnr": codes["listed"]["psnr"],
        "codes_used": codes["listed"]["codes_used"],
        "code_entropy": codes["listed"]["entropy_bits"],
        **training["decoder"],
    }


def _recipe(stages: Sequence[Stage], vq_config: VQConfig, training: dict[str, Any]) -> dict[str, Any]:
    """How the decoder was trained, in numbers, in words for each stage, and as commands."""
    samples = int(sum(progress["steps"] * config.batch_size for config, progress in stages))
    minutes = sum(progress["minutes"] for _, progress in stages)
    vq_minutes = training["tokenizer"]["minutes"]
    commands = [f"codes = {_call(vq_config, output='runs/vq', minutes=round(vq_minutes, 1))}", "vq.train(codes)"]
    words = []
    for number, (config, progress) in enumerate(stages, start=1):
        fixed: dict[str, Any] = {"output": f"runs/stage-{number}", "vq": "runs/vq/vq", "start_from": None}
        if number > 1:
            fixed["start_from"] = f"runs/stage-{number - 1}"
        commands.append(f"stage_{number} = {_call(config, **fixed)}")
        planned, shares = config.minutes, config.corruption
        stopped = planned is not None and planned - progress["minutes"] > 1
        commands.append(
            f"llamagen.train(stage_{number})" + (f"  # stopped after {progress['minutes']:.0f}" if stopped else "")
        )
        words.append(
            f"{number}. {progress['steps']:,.0f} steps of {config.batch_size} in {progress['minutes']:.0f} "
            f"{f'of {planned:.0f} planned ' if stopped else ''}minutes: "
            f"{shares.lost:.0%} lost, {shares.suffix:.0%} suffix, {shares.scattered:.0%} scattered, "
            f"{1 - shares.lost - shares.suffix - shares.scattered:.0%} clean; {len(config.names) or 'all listed'} emoji."
        )
    earlier = ", ".join(f"stage_{number}" for number in range(1, len(stages)))
    commands.append(f'export.export(stage_{len(stages)}, codes, "emoji-t2i", earlier=[{earlier}])')
    return {
        "samples": samples,
        "minutes": minutes,
        "vq_minutes": vq_minutes,
        "total": (minutes + vq_minutes) / 60,
        "commands": "\n".join(commands),
        "stages": "\n".join(words),
    }


def _call(config: LoopConfig, **changes: Any) -> str:
    """Python that makes ``config`` with ``changes``; settings that have their default value are left out."""
    defaults = {item.name: item.default for item in fields(config)}
    values = {name: getattr(config, name) for name in defaults} | {"data": "emoji", "resume": False} | changes
    shown = [
        f"    {n}={json.dumps(v) if isinstance(v, str) else repr(v)},"
        for n, v in values.items()
        if v != defaults[n] and (v or defaults[n] is not None)
    ]
    kind = type(config)
    return "\n".join([f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}(", *shown, ")"])
