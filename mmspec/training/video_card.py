"""The model card of the embedded video checkpoint, filled with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.training.loop import LoopConfig
from mmspec.training.video_ar import VideoARConfig
from mmspec.training.video_clips import ClipConfig

NOTICE = """\
The weights and the pictures in samples/ were made from emoji drawings, and the model can redraw them:

Noto Emoji, copyright Google Inc., licensed under the Apache License 2.0.
    Package @iconify-json/noto.

The package is not part of this distribution.
"""

MODEL_CARD = """\
---
license: apache-2.0
library_name: mmspec
pipeline_tag: image-to-video
tags: [video-generation, autoregressive, speculative-decoding]
---

# mmspec/tiny-video

A very small Cosmos-class video model: given a first frame of {pixels} x {pixels} pixels and a text such as
"{example}", it makes {frames} frames in which the sprite moves and bounces off the edges. It exists so that mmspec's
demonstration, tests and benchmarks run a real, trained autoregressive video model anywhere, without a download.

**The data is procedural and nothing was filmed.** {names} drawings of Noto Emoji were moved over a white frame by a
program. The model knows these drawings and straight motion along one axis, and nothing else. Do not judge video
quality, or what speculative decoding gives on large models, by it.

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `transformer` | VideoARTransformer of the Video2World kind: {layers} layers, width {width}, cross-attention to text, clips of {shape} codes | {decoder_parameters:,} | float16 |
| `video_tokenizer` | DiscreteVideoTokenizer: {spatial} x {spatial} pixels and {temporal} frames a code, {codes} codes (FSQ {levels}) | {tokenizer_parameters:,} | float16 |
| `text_encoder` | T5 encoder, trained jointly from scratch | {text_parameters:,} | float16 |
| `tokenizer` | byte-level BPE, {pieces} pieces, ignores case and punctuation | | |

Run it in float32 on processors. `model_index.json` holds the recommended temperature and top-k, `samples.json` first
frames and texts of clips that training never saw.

## Texts

`"<name> moves <way>"` with left, right, up or down, or `"<name> stays still"`. Names: {listed}.
Without a text the model chooses a motion itself.

## Training

{steps} steps for the decoder and {tokenizer_steps} for the tokenizer, on one thread of a processor that was shared with
other work most of the time. Commands, in this order; each can be interrupted and resumed:

```bash
{commands}
```

Where the limits are minutes, the result depends on how fast the machine is; give `--steps` instead to get the same weights
again.{restarted}

Of the clips (sprite, start on a grid of 4 pixels, direction) {held_out:.0%} were held out. {dropped:.0%} of the captions
were dropped. **Corrupted contexts**{last_stage}**:** in {stale:.0%} of the samples a prefix of random length stayed clean and each
later code became, with a probability from [0.5, 1], the one at its place in the frame before; in {scattered:.0%} each code
was replaced with a probability from [0, 0.5] by its left or upper neighbour, the one at its place in the frame before or
that of another clip; the targets stayed right. So the model knows Jacobi windows that start from the codes of the frame before, which is
what the recommended drafter does, and no other starts. **Acceptance rates and speed-ups measured with it are therefore
higher than those of large models trained on natural videos, and so is the gain of that start over others.**

## Measured

On clips that training never saw.

| what | value |
| --- | --- |
| tokenizer: PSNR, whole frames / where the sprite is | {psnr:.2f} / {sprite_psnr:.2f} dB |
| tokenizer: codes used, entropy of their use | {codes_used} of {codes}, {code_entropy:.2f} bits |
| decoder: cross-entropy, clean context | {loss:.3f} nats a code |
| decoder: likeliest code right, clean context | {accuracy:.1%} |
| decoder: likeliest code right in the first new frame, its own codes replaced by those of the frame before | {copied_frame_accuracy:.1%} |
| decoder: entropy of its predictions | {entropy_bits:.3f} bits a code |
| motion: mean distance of the sprite's centre from where it should be, {motion_clips} clips | {motion_error:.2f} pixels |
| the same of a clip that stands still | {still_error:.2f} pixels |

{assessment}

## Data and licence

Noto Emoji by Google, npm package `@iconify-json/noto` 1.2.9, Apache-2.0, rasterised at {sprite} pixels. The drawings
are not part of this distribution, but the model can redraw them, so `NOTICE` travels with it.
"""


def model_card(pipe: Any, config: VideoARConfig, training: dict[str, Any], assessment: str) -> str:
    """The card of a trained model.

    Args:
        pipe: The pipeline.
        config: The last training of the decoder.
        training: What was measured: ``tokenizer``, ``decoder`` and ``motion``; and ``stages``, see :func:`stage`.
        assessment: Paragraph on what the clips look like.
    """
    values = _sizes(pipe, config) | _recipe(config, training["stages"])
    held_out = training["tokenizer"][-1]["held_out"]
    values |= {name: held_out[name] for name in ("psnr", "sprite_psnr", "codes_used")}
    values |= {
        name: training["decoder"][name] for name in ("loss", "accuracy", "entropy_bits", "copied_frame_accuracy")
    }
    values |= {name: training["motion"][name] for name in ("motion_error", "still_error")}
    values |= {"code_entropy": held_out["entropy_bits"], "motion_clips": training["motion"]["clips"]}
    return MODEL_CARD.format(**values, assessment=assessment.strip())


def stage(
    recipe: str, config: LoopConfig, progress: Mapping[str, float], options: Mapping[str, str]
) -> dict[str, Any]:
    """What the card says of one training.

    Args:
        recipe: Name of the command behind ``mmspec train``.
        config: Its settings.
        progress: Its ``steps`` and ``minutes``.
        options: Further options of the command, as they are written.

    Returns:
        ``recipe``, ``command``, ``steps`` and ``minutes``.
    """
    steps, minutes = int(progress["steps"]), progress["minutes"]
    limit = f"--minutes {minutes:.0f}" if config.steps is None else f"--steps {steps}"
    words = " ".join(f"--{name} {value}" for name, value in options.items())
    command = f"mmspec train {recipe} --data emoji {words} {limit} --set learning_rate={config.learning_rate:g}"
    return {"recipe": recipe, "command": command, "steps": steps, "minutes": minutes}


def _sizes(pipe: Any, config: VideoARConfig) -> dict[str, Any]:
    tokenizer, transformer = pipe.video_tokenizer, pipe.transformer
    clips = ClipConfig(data=config.data, num_frames=tokenizer.config.chunk_frames)
    return {
        "pixels": clips.frame_size,
        "sprite": clips.sprite_size,
        "frames": clips.num_frames,
        "names": len(clips.names),
        "listed": ", ".join(name.replace("-", " ") for name in clips.names),
        "example": "soccer ball moves left",
        "held_out": clips.held_out,
        "layers": transformer.config.num_layers,
        "width": transformer.config.hidden_size,
        "shape": " x ".join(map(str, transformer.config.latent_shape)),
        "spatial": tokenizer.config.spatial_compression,
        "temporal": tokenizer.config.temporal_compression,
        "codes": tokenizer.num_codes,
        "levels": " x ".join(map(str, tokenizer.config.levels)),
        "decoder_parameters": transformer.num_parameters(),
        "tokenizer_parameters": tokenizer.num_parameters(),
        "text_parameters": pipe.text_encoder.num_parameters(),
        "pieces": len(pipe.tokenizer),
    }


def _recipe(config: VideoARConfig, stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = {
        recipe: " and ".join(f"{done['steps']:,}" for done in stages if done["recipe"] == recipe)
        for recipe in ("video-tokenizer", "video-ar")
    }
    again = (
        " The last command starts from the model that the ones before it made. Up to there the decoder learnt with "
        "other corrupted contexts, in which codes also became random ones."
    )
    return {
        "commands": "\n".join(done["command"] for done in stages),
        "steps": steps["video-ar"],
        "tokenizer_steps": steps["video-tokenizer"],
        "restarted": again if config.start_from else "",
        "last_stage": " (last command)" if config.start_from else "",
        "dropped": config.dropped_captions,
        "stale": config.corruption.stale,
        "scattered": config.corruption.scattered,
    }
