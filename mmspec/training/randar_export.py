"""Write the trained any-order model as the pipeline folder ``mmspec/emoji-randar`` that ships with the package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.pipelines.any_order import AnyOrderPipeline
from mmspec.training.export import NOTICE
from mmspec.training.randar import RandARConfig, class_names, evaluate, load_checkpoint

RECOMMENDED: dict[str, Any] = {"guidance_scale": 1.5, "temperature": 0.7, "top_k": 50, "order": "random"}
"""The defaults of a call."""

DRAFTER: dict[str, Any] = {"window": 64, "initializer": "uniform", "controller": "fixed"}

MODEL_CARD = """\
---
license: apache-2.0
library_name: mmspec
pipeline_tag: unconditional-image-generation
tags: [image-generation, autoregressive, any-order, speculative-decoding]
---

# mmspec/emoji-randar

A very small RandAR model: {pixels} x {pixels} pixel emoji of {classes} classes, whose cells are drawn in any order, so that
it also fills holes in given pictures. It exists so that mmspec's any-order decoding runs on real, trained weights anywhere.

**It is deliberately over-fitted.** It learnt {drawings} drawings, {classes} emoji in three styles, nearly by heart and knows
nothing else. Do not judge image quality, or what speculative decoding gives on large models, by it.

```python
from mmspec import AnyOrderPipeline

pipe = AnyOrderPipeline.from_pretrained("mmspec/emoji-randar")
picture = pipe(class_labels="red apple", seed=7).images[0]
again = pipe(class_labels="red apple", image=picture, mask_image=mask, seed=8).images[0]  # white pixels of the mask
```

## Parts

| folder | what | parameters | stored |
| --- | --- | --- | --- |
| `transformer` | RandAR decoder: {layers} layers, width {width}, {grid} x {grid} codes | {parameters:,} | float16 |
| `vq` | the tokenizer of mmspec/emoji-t2i: factor 4, {codes} codes | {vq_parameters:,} | float16 |

Run it in float32 on processors. Classes: {listed}.

## Training

{steps:,} steps of {batch} samples in {minutes:.0f} minutes of one thread of a processor that was shared with other work; every
sample has an order of its own, {dropped:.0%} no class.

```bash
{command}
```

## Measured

On the drawings that it learnt, in random orders:

| what | value |
| --- | --- |
| cross-entropy | {loss:.3f} nats a cell |
| likeliest code right, all cells / second half of the order | {accuracy:.1%} / {late_accuracy:.1%} |
| entropy of its predictions | {entropy_bits:.3f} bits a cell |

{assessment}

## Data and licence

The drawings are those of mmspec/emoji-t2i; `NOTICE` names them and travels with the weights.
"""


def export(
    config: RandARConfig, folder: str | Path, assessment: str = "", recommended: dict[str, Any] | None = None
) -> Path:
    """Write the averaged model of the newest checkpoint, of a running or a finished training, as a pipeline folder.

    Weights are stored in float16.

    Args:
        config: The training; its ``output`` holds the checkpoint.
        folder: Where to write the pipeline, ``training.json``, ``README.md`` and ``NOTICE``.
        assessment: Paragraph for the model card on what the pictures look like.
        recommended: Defaults of a call, by default :data:`RECOMMENDED`.

    Raises:
        FileNotFoundError: If the training left nothing to export.
    """
    folder = Path(folder)
    model, vq, dataset, progress = load_checkpoint(config)
    training = {**progress, "drawings": len(dataset.codes), **evaluate(model, dataset, config)}
    pipe = AnyOrderPipeline(
        model, vq, JacobiDrafter(**DRAFTER), class_names=class_names(config.names),
        **(RECOMMENDED if recommended is None else recommended),
    )  # fmt: skip
    card = _card(pipe, config, training, assessment)
    for part in (model, vq):
        part.to(torch.float16)
    for name in pipe.components:
        shutil.rmtree(folder / name, ignore_errors=True)
    pipe.save_pretrained(folder)
    settings = json.loads((folder / "vq" / "config.json").read_text())
    settings.pop("_name_or_path", None)  # the folder of the training run, which is nobody's business
    (folder / "vq" / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "training.json").write_text(json.dumps(training, indent=2) + "\n")
    (folder / "README.md").write_text(card)
    (folder / "NOTICE").write_text(NOTICE)
    return folder


def _card(pipe: AnyOrderPipeline, config: RandARConfig, training: dict[str, Any], assessment: str) -> str:
    limit = f"--minutes {training['minutes']:.0f}" if config.steps is None else f"--steps {config.steps}"
    return MODEL_CARD.format(
        **{
            name: training[name]
            for name in ("drawings", "loss", "accuracy", "late_accuracy", "entropy_bits", "minutes")
        },
        pixels=pipe.image_size[0],
        classes=len(config.names),
        layers=config.num_layers,
        width=config.hidden_size,
        grid=pipe.grid[0],
        codes=pipe.vq.config.num_vq_embeddings,
        parameters=pipe.transformer.num_parameters(),
        vq_parameters=pipe.vq.num_parameters(),
        listed=", ".join(pipe.config.class_names),
        steps=int(training["steps"]),
        batch=config.batch_size,
        dropped=config.dropped_classes,
        command=f"mmspec train randar --data emoji --vq emoji-t2i/vq --output runs/randar {limit} "
        f"--set learning_rate={config.learning_rate:g}",
        assessment=assessment.strip(),
    )
