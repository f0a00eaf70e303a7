"""The model card of the embedded text-to-image checkpoint, filled with what was measured."""

from __future__ import annotations

from typing import Any

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

Run it in float32 on processors. Recommended: guidance 3, temperature 1, top-k 100; greedy decoding works too.

## Captions

* `"<name>, <style> style"`, the form most trained on; `"<name>"`, `"<name>, <class>, <style> style"` and
  `"<class>, <style> style"` work as well. Styles: noto, twemoji, fluent. Names are those of the icon packages with
  spaces for hyphens, and everyday short forms ("dog", "car", "apple"); `mmspec/training/names.py` lists all.
* Or a class alone: {classes} (ids in `categories.json`, in this order).
* At most {slots} tokens. `prompts.json` holds the twenty prompts of the contact sheet.

## Training

{samples:,} samples ({epochs:.0f} passes over the drawings) in {minutes:.0f} minutes, after {vq_minutes:.0f} minutes for the tokenizer,
on two shared cores of a server processor with AMX, bf16 autocast. AdamW, cosine schedule, running average of the
weights. Commands, about {total:.1f} hours; each can be interrupted and resumed:

```python
from mmspec.training import export, llamagen, vq
from mmspec.training.corruption import Corruption

{commands}
export.export(config, codes, "emoji-t2i")
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


def model_card(values: dict[str, Any]) -> str:
    """The card with ``values`` in its blanks.

    Raises:
        KeyError: If a value is missing.
    """
    return MODEL_CARD.format(**values)
