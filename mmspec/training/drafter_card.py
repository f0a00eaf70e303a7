"""The model card of a trained image drafter, filled with what was measured."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmspec.drafters.feature import FeatureDrafter
from mmspec.training.image_drafter import ImageDrafterConfig

CARD = """\
---
license: apache-2.0
library_name: mmspec
tags: [image-generation, speculative-decoding, drafter]
---

# Feature drafter of {target}

{layers} decoder layer{plural} of width {width} ({parameters:,} parameters, stored in float16) that drafts image codes
for `{target}` from the target's own states (EAGLE, Li et al., 2024). It changes how fast pictures come, never which:
under the default rule they are those of plain decoding. It fits this target alone, and says so when it is given another.

```python
from mmspec import FeatureDrafter, LlamaGenPipeline

pipe = LlamaGenPipeline.from_pretrained("{target}")
pipe.drafter = FeatureDrafter.from_pretrained("{target}")
pipe.drafter = pipe.drafter.with_settings(tree="chain", num_nodes=6)  # other drafts from the same weights
```

## Training

Data: {pictures:,} pictures that the target drew itself, at its own settings, of captions other than those below. No
other data was used; licences and notices of the target apply.

{steps}{minutes:.0f} minutes after sampling, on one core of a shared server processor. AdamW, cosine schedule, running
average of the weights. Loss on image codes: {feature_weight} x smooth-L1 to the target's states +
{token_weight} x cross-entropy to the target's law, over {steps_ahead} step{steps_plural} of drafting, each weighted
{step_decay} times the one before; {branches}.

```
{command}
```

## Measured

{measured}
"""

MEASURED = """\
{count} captions that no training picture shows, one picture each, decoded alone; with every method the codes were those
of plain decoding. Acceptance length: tokens per verification, bonus included. Speed: plain decoding's time divided by
the method's on the machine of the training, which was shared: processor time, and the clock's. The pictures of so small a target are over-fitted, so
acceptance is higher than on large models.

The fastest of the drafter's methods, *{chosen}*, is what the saved settings say.

| drafts | acceptance length | target forwards | drafter forwards | speed, processor | speed, clock |
| --- | --- | --- | --- | --- | --- |
{rows}

Share of codes that were the drafter's candidate of each rank, given that all before were right:

{ranks}
"""


def drafter_card(config: ImageDrafterConfig, drafter: FeatureDrafter, report: dict[str, Any]) -> str:
    """The card of ``drafter``, trained by ``config``, with the figures of ``report``."""
    both = "both guidance branches of every picture, judged by their guided logits"
    drop = f"{config.null_share:.0%} of the pictures without their condition"
    return CARD.format(
        target=_name(config),
        layers="One" if config.num_layers == 1 else config.num_layers,
        plural="" if config.num_layers == 1 else "s",
        width=drafter.config.hidden_size,
        parameters=drafter.num_parameters(),
        pictures=config.num_pictures,
        steps=f"{report['steps']:,} steps of {config.batch_size} pictures, " if "steps" in report else "",
        minutes=report["minutes"],
        feature_weight=config.feature_weight,
        token_weight=config.token_weight,
        steps_ahead=config.steps_ahead,
        steps_plural="" if config.steps_ahead == 1 else "s",
        step_decay=config.step_decay,
        branches=both if config.branches == "both" else drop,
        command=command(config),
        measured=_measured(report) if "methods" in report else "Nothing: the target names no captions to hold out.",
    )


def command(config: ImageDrafterConfig) -> str:
    """The shell command that runs this training."""
    words = ["mmspec train image-drafter", f"--target {_name(config)}", "--output runs/drafter"]
    words += [
        f"--{name} {getattr(config, name)}" for name in ("steps", "minutes") if getattr(config, name) is not None
    ]
    own = {"output", "target", "steps", "minutes", "resume", "device", "compile"}
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name not in own and value != item.default:
            words.append(f"--set {item.name}={json.dumps(value, default=lambda path: path.name)}")
    return " \\\n    ".join(words)


def _name(config: ImageDrafterConfig) -> str:
    """The target's name; of a folder the last part, since where it lay is nobody's business."""
    path = Path(config.target)
    return path.name if path.is_dir() else config.target


def _measured(report: dict[str, Any]) -> str:
    rows = [
        f"| {name} | {m['acceptance_length']:.2f} | {m['forwards']:.1f} | {m['draft_forwards']:.1f} | "
        f"{m['time_ratio']:.2f} | {m['wall_ratio']:.2f} |"
        for name, m in report["methods"].items()
    ]
    ranks = []
    for mode, table in report["ranks"].items():
        shares = table["acceptance_by_depth_and_rank"]
        ranks += [f"| {mode} | " + " | ".join(f"rank {rank}" for rank in range(len(shares[0]))) + " |"]
        ranks += ["| --- |" + " --- |" * len(shares[0])]
        ranks += [
            f"| depth {depth + 1} | " + " | ".join(f"{share:.1%}" for share in row) + " |"
            for depth, row in enumerate(shares)
        ]
        ranks.append("")
    return MEASURED.format(
        count=len(report["held_out"]),
        chosen=report["chosen"],
        rows="\n".join(rows),
        ranks="\n".join(ranks).rstrip(),
    )
