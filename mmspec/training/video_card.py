"""The model card of the embedded video checkpoint, filled with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.training.video_ar import VideoARConfig
from mmspec.training.video_tokenizer import VideoTokenizerConfig

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

{samples:,} samples in {steps:,} steps for the decoder, {tokenizer_steps} for the tokenizer, on one thread of a processor
that was shared with other work most of the time. Commands; each can be interrupted and resumed:

```bash
{commands}
```

The result depends on how fast the machine is, because the limits are minutes; give `--steps` instead to get the same
weights again.

Of the clips (sprite, start on a grid of 4 pixels, direction) {held_out:.0%} were held out. {dropped:.0%} of the captions
were dropped. **Corrupted contexts:** in {suffix:.0%} of the samples a prefix of random length stayed clean and each
later code was replaced with a probability from [0.5, 1]; in {scattered:.0%} each code with one from [0, 0.5]; the
targets stayed right. A replaced code became a random one, its left or upper neighbour, that of another clip, or the
one at its place in the frame before. So the model reads earlier frames rather than the unsettled guesses of a Jacobi
window. **Acceptance rates and speed-ups measured with it are therefore higher than those of large models trained on
natural videos.**

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


def model_card(
    pipe: Any,
    config: VideoARConfig,
    tokenizers: Sequence[VideoTokenizerConfig],
    training: dict[str, Any],
    assessment: str,
) -> str:
    """The card of a trained model.

    Args:
        pipe: The pipeline.
        config, tokenizers: The trainings, those of the tokenizer first to last.
        training: What was measured: ``tokenizer``, ``decoder`` and ``motion``.
        assessment: Paragraph on what the clips look like.
    """
    values = _sizes(pipe, config, tokenizers[-1]) | _recipe(config, tokenizers, training)
    held_out = training["tokenizer"][-1]["held_out"]
    values |= {name: held_out[name] for name in ("psnr", "sprite_psnr", "codes_used")}
    values |= {
        name: training["decoder"][name] for name in ("loss", "accuracy", "entropy_bits", "copied_frame_accuracy")
    }
    values |= {name: training["motion"][name] for name in ("motion_error", "still_error")}
    values |= {"code_entropy": held_out["entropy_bits"], "motion_clips": training["motion"]["clips"]}
    return MODEL_CARD.format(**values, assessment=assessment.strip())


def _sizes(pipe: Any, config: VideoARConfig, tokenizer_config: VideoTokenizerConfig) -> dict[str, Any]:
    clips, tokenizer = tokenizer_config.clips, pipe.video_tokenizer
    return {
        "pixels": clips.frame_size,
        "sprite": clips.sprite_size,
        "frames": clips.num_frames,
        "names": len(clips.names),
        "listed": ", ".join(name.replace("-", " ") for name in clips.names),
        "example": "soccer ball moves left",
        "layers": config.num_layers,
        "width": config.hidden_size,
        "shape": " x ".join(map(str, pipe.transformer.config.latent_shape)),
        "spatial": tokenizer.config.spatial_compression,
        "temporal": tokenizer.config.temporal_compression,
        "codes": tokenizer.num_codes,
        "levels": " x ".join(map(str, tokenizer.config.levels)),
        "decoder_parameters": pipe.transformer.num_parameters(),
        "tokenizer_parameters": tokenizer.num_parameters(),
        "text_parameters": pipe.text_encoder.num_parameters(),
        "pieces": config.text_vocab_size,
    }


def _recipe(
    config: VideoARConfig, tokenizers: Sequence[VideoTokenizerConfig], training: dict[str, Any]
) -> dict[str, Any]:
    decoder, reports = training["decoder"], training["tokenizer"]
    commands = []
    for number, (stage, report) in enumerate(zip(tokenizers, reports, strict=True), start=1):
        more = " --set decoder_only=true" if stage.decoder_only else ""
        more += f" --set start_from=runs/tokenizer-{number - 1}" if stage.start_from else ""
        commands.append(
            f"mmspec train video-tokenizer --data emoji --output runs/tokenizer-{number} --minutes {report['minutes']:.0f} "
            f"--set learning_rate={stage.learning_rate:g}{more}"
        )
    commands.append(
        f"mmspec train video-ar --data emoji --tokenizer runs/tokenizer-{len(reports)}/tokenizer --output runs/video-ar "
        f"--minutes {decoder['minutes']:.0f} --set learning_rate={config.learning_rate:g}"
    )
    return {
        "commands": "\n".join(commands),
        "samples": int(decoder["steps"] * config.batch_size),
        "steps": int(decoder["steps"]),
        "tokenizer_steps": " and ".join(f"{report['steps']:,.0f}" for report in reports),
        "held_out": tokenizers[-1].clips.held_out,
        "dropped": config.dropped_captions,
        "suffix": config.corruption.suffix,
        "scattered": config.corruption.scattered,
    }
