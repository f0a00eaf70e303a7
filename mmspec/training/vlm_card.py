"""The model card of the embedded vision-language checkpoint, filled with what was measured."""

from __future__ import annotations

from typing import Any

from mmspec.training.vlm_lines import FONTS, HELD_OUT_FONT

NOTICE = """\
The weights and the pictures in samples/ were made from these works:

Noto Emoji, copyright Google Inc., licensed under the Apache License 2.0.
    Package @iconify-json/noto.
Fluent Emoji (flat), copyright Microsoft Corporation, licensed under the MIT License.
    Package @iconify-json/fluent-emoji-flat.
Twemoji, copyright Twitter, Inc and other contributors, graphics licensed under CC-BY 4.0
    (https://creativecommons.org/licenses/by/4.0/). The drawings were rasterised.
    Package @iconify-json/twemoji.

Words of Debian's package wamerican (SCOWL, copyright Kevin Atkinson; permissive licence), drawn in the fonts
DejaVu (Bitstream Vera licence), Liberation (SIL Open Font License 1.1), Open Sans (SIL Open Font License 1.1) and
Lato (SIL Open Font License 1.1).

Neither the packages nor the fonts are part of this distribution; pictures in samples/ show drawings and letters.
"""

CARD = """\
---
license: apache-2.0
library_name: mmspec
pipeline_tag: image-text-to-text
tags: [vision-language, ocr, speculative-decoding]
---

# mmspec/tiny-vlm

A very small LLaVA-class model that reads a line of text with one character in each place, as in forms, names an emoji, and describes an emoji as JSON. It
exists so that mmspec's demonstration, tests and benchmarks run a real, trained vision-language model anywhere, without
a download. **It knows nothing else**: do not judge what such models can do, or what speculative decoding gives on large
ones, by it. It writes one character a token, so answers have more tokens, and more of them are easy to guess, than those
of models with large vocabularies.

```python
from mmspec import VisionLanguagePipeline

pipe = VisionLanguagePipeline.from_pretrained("mmspec/tiny-vlm")
print(pipe("read the text", "line.png").texts[0])        # up to 24 characters, one in every 16 of 384 x 32 pixels
print(pipe("describe it as json", "emoji.png").texts[0])  # {{"name": ..., "kind": ..., "style": ...}}
```

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `model` | Pixtral-like vision tower ({vision_layers} layers, width {vision_width}, patches of {patch}) and Llama ({layers} layers, width {width}) | {parameters:,} | float16 |
| `processor` | keeps proportions, {vocabulary} characters and marks as tokens | | |
| `drafter` | block drafter: {block_layers} layer{block_plural}, blocks of {block_size}, reads layers {taps} | {block_parameters:,} | float16 |
{eagle_row}
Run it in float32 on processors. `questions.jsonl` lists questions about new lines, and about known emoji in new places.

## Measured

Greedy decoding of the weights as stored, on up to {samples} samples of each kind: lines of words that training never drew; known
drawings of emoji, in sizes and places of their own; and new drawings, of a style in which their name was not trained.

| task | right answers | wrong characters | valid JSON |
| --- | --- | --- | --- |
{scores}

Tokens per verification of the drafters on {asked} held-out questions of each task, one by one, greedily; with every
draft the tokens were those of plain decoding:

| drafter | drafts | {tasks} |
| --- | --- | {rules} |
{lengths}
{losses}
{assessment}
## Training

Target: {steps:,} steps, {minutes:.0f} minutes, on one core of a shared server processor, all parts together, on answers alone;
{corruption:.0%} of the characters that were read back were replaced, so that the model looks rather than completes. What stands for a patch
of a line had to tell the character that is drawn there, in the first steps nothing else. Drafters learnt the target's own answers. Commands; each can be interrupted and resumed:

```bash
{commands}
```

Lines: words, numbers, prices, dates, times, codes and addresses in {fonts}; {held_out_font} is for evaluation only.

## Data and licence

Emoji of three projects, words of wamerican, and Debian's packages of the fonts; `NOTICE` travels with the weights, since the
model could be asked to tell what it learnt of them. Weights: Apache-2.0.
"""


def model_card(facts: dict[str, Any], settings: dict[str, Any], commands: list[str]) -> str:
    """The card.

    Args:
        facts: What ``training.json`` holds: ``runs``, ``measured``, ``corruption``, ``drafters``, and perhaps ``losses`` and ``assessment``.
        settings: Sizes of the parts.
        commands: What made them.
    """
    measured = facts["measured"]
    scores = []
    for name, score in measured.items():
        valid = f"{score['valid']:.0%}" if "valid" in score else ""
        scores.append(f"| {name.replace('_', ' ')} | {score['exact']:.1%} | {score['cer']:.1%} | {valid} |")
    drafters = facts["drafters"]
    tasks = list(next(iter(drafters.values()))["measured"])
    lengths = [
        f"| {name} | {shape} | "
        + " | ".join(f"{report['measured'][task][shape]['length']:.2f}" for task in tasks)
        + " |"
        for name, report in drafters.items()
        for shape in report["measured"][tasks[0]]
    ]
    eagle = settings.pop("eagle_parameters", None)
    row = f"| `eagle3_drafter` | EAGLE-3 head on states of the same layers | {eagle:,} | float16 |\n" if eagle else ""
    return CARD.format(
        **settings,
        block_plural="" if settings["block_layers"] == 1 else "s",
        eagle_row=row,
        samples=max(score["samples"] for score in measured.values()),
        scores="\n".join(scores),
        asked=facts["asked"],
        tasks=" | ".join(tasks),
        rules=" | ".join("---" for _ in tasks),
        lengths="\n".join(lengths),
        losses=_losses(facts.get("losses")),
        assessment=facts.get("assessment", ""),
        steps=int(sum(run["steps"] for run in facts["runs"])),
        minutes=sum(run["minutes"] for run in facts["runs"]),
        corruption=facts["corruption"],
        commands="\n".join(commands),
        fonts=", ".join(sorted(set(FONTS) - {HELD_OUT_FONT})),
        held_out_font=HELD_OUT_FONT,
    ).replace("\n\n\n", "\n\n")


def _losses(content: dict[str, Any] | None) -> str:
    """The comparison of losses, if there was one."""
    if content is None:
        return ""
    shapes = content["shapes"]
    names = list(next(iter(shapes.values())))
    rows = [
        f"| {loss} | "
        + " | ".join(f"{shapes[s][loss]['mean']:.2f} ({(shapes[s][loss]['ratio'] - 1):+.1%})" for s in shapes)
        + " |"
        for loss in names
    ]
    return (
        f"\nLosses on a corpus with {content['corpus_noise']:.0%} of its tokens replaced, mean tokens per verification over all tasks "
        f"and {len(content['seeds'])} seeds:\n\n"
        f"| loss | {' | '.join(shapes)} |\n| --- |{' --- |' * len(shapes)}\n" + "\n".join(rows) + "\n"
    )
