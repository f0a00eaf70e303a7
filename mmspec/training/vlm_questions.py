"""What the recipes of drafters for vision-language models share: the frozen target, its questions, and the measurement.

Works in one process on any supported target: the target reads each batch, its states are the drafter's context, and
nothing is stored but the answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec.core.stats import DecodeStats
from mmspec.drafters.block_network import default_taps
from mmspec.drafters.compression import check_compression
from mmspec.drafters.fingerprint import fingerprint
from mmspec.drafters.network import DrafterNetwork
from mmspec.pipelines.auto_vision_language import AutoVisionLanguagePipeline
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import LoopConfig, read_progress
from mmspec.training.vlm_examples import (
    Example,
    corpus_examples,
    embedded_items,
    held_out_items,
    target_examples,
)
from mmspec.training.vlm_tasks import DataConfig, Material, load_material
from mmspec.vlm.items import Item, read_items


@dataclass(frozen=True, kw_only=True)
class VlmQuestionsConfig(LoopConfig):
    """Settings of a drafter's training that do not depend on the drafter; those of every loop are in :class:`LoopConfig`.

    Args:
        target: Embedded name, folder or hub id of a vision-language pipeline or model.
        data: Folder that ``mmspec train vlm data`` filled, for the questions of the embedded model.
        questions, held_out: Files of questions for other targets, one JSON object a line with ``prompt``, ``images`` and,
            for ``answers`` corpus, ``answer``. Give either ``data`` or ``questions``.
        num_examples: Questions drawn from ``data``.
        shares: Shares of the tasks json, name, read among them.
        answers: ``target``: the target's own; ``corpus``: those of the questions.
        corpus_noise: Part of the corpus' tokens that are replaced, for a corpus that the target would not write.
        max_answer: Longest answer of the target in tokens.
        num_heads, num_kv_heads, head_dim, intermediate_size: Widths of the drafter; ``None`` are the target's.
        num_taps, taps: How many layers of the target are read, or which.
        compression, compression_ratio: How the slots of pictures become fewer in the drafter's context, see
            :mod:`mmspec.drafters.compression`.
        evaluate: Held-out questions of each kind at the end.

    Raises:
        ValueError: If a number is out of range, or questions are given twice or not at all.
    """

    target: str = "mmspec/tiny-vlm"
    data: Path | None = None
    questions: Path | None = None
    held_out: Path | None = None
    num_examples: int = 2048
    shares: tuple[float, ...] = (0.35, 0.15, 0.5)
    answers: str = "target"
    corpus_noise: float = 0.0
    max_answer: int = 96
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    num_taps: int = 3
    taps: tuple[int, ...] | None = None
    compression: str | None = None
    compression_ratio: int = 4
    evaluate: int = 24
    batch_size: int = 8
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    average_decay: float = 0.995

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.questions is None):
            raise ValueError("Give exactly one of `data` and `questions`.")
        if self.answers not in ("corpus", "target"):
            raise ValueError(f"`answers` is {self.answers!r}; choose 'corpus' or 'target'.")
        for name in ("num_examples", "max_answer", "num_taps", "evaluate"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.compression is not None:
            check_compression(self.compression, self.compression_ratio)
        if not 0 <= self.corpus_noise < 1:
            raise ValueError(f"`corpus_noise` must lie in [0, 1), got {self.corpus_noise}.")


def widths(config: VlmQuestionsConfig, pipe: VisionLanguagePipeline) -> dict[str, Any]:
    """Settings that any drafter of states has: sizes of the target and of the drafter's layers, taps, fingerprint."""
    text = pipe.model.config.get_text_config()
    heads = config.num_heads or text.num_attention_heads
    count = min(config.num_taps, text.num_hidden_layers - 1)
    return {
        "vocab_size": pipe.adapter.vocab_size,
        "hidden_size": text.hidden_size,
        "num_heads": heads,
        "num_kv_heads": config.num_kv_heads or (heads if config.num_heads else text.num_key_value_heads),
        "head_dim": config.head_dim or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        "intermediate_size": config.intermediate_size or text.intermediate_size,
        "taps": list(config.taps or default_taps(text.num_hidden_layers, count)),
        "target": fingerprint(pipe.model),
        "compression": config.compression,
        "compression_ratio": config.compression_ratio,
    }


def draw_weights(drafter: DrafterNetwork, seed: int) -> None:
    """Fill the matrices of a new drafter; its layers begin by changing little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim >= 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                weight.normal_(std=weight.shape[1] ** -0.5 * (0.3 if residual else 1.0), generator=generator)


def load_target(config: VlmQuestionsConfig) -> VisionLanguagePipeline:
    """The frozen target, quiet, on the configured device."""
    pipe = AutoVisionLanguagePipeline.from_pretrained(config.target)
    pipe.set_progress_bar_config(disable=True)
    pipe.model.requires_grad_(False).eval()
    pipe.to(config.device)
    return pipe


def gather(config: VlmQuestionsConfig, pipe: VisionLanguagePipeline, material: Material | None) -> list[Example]:
    """Questions with the answers to learn from."""
    if config.questions is not None:
        items = read_items(config.questions)
    else:
        assert material is not None
        items = embedded_items(material, config.num_examples, config.shares, config.seed)
    if config.answers == "corpus":
        examples = corpus_examples(pipe, items, config.corpus_noise, config.seed)
    else:
        examples = target_examples(pipe, items, config.output / "answers", config.max_answer, config.seed)
    usable = [example for example in examples if len(example.answer) >= 2]  # an anchor and something behind it
    if not usable:
        raise ValueError("No answer has two tokens; there is nothing to learn.")
    return usable


def material_of(config: VlmQuestionsConfig) -> Material | None:
    """What the questions of the embedded model are drawn from; ``None`` where they come from a file."""
    return None if config.data is None else load_material(DataConfig(config.data))


def finish(
    config: VlmQuestionsConfig,
    pipe: VisionLanguagePipeline,
    drafter: DrafterNetwork,
    material: Material | None,
    shapes: Mapping[str, dict[str, Any]],
    facts: dict[str, Any],
) -> Path:
    """Measure acceptance on held-out questions in drafts of several ``shapes``, and save drafter and report.

    Args:
        shapes: Name to settings of the drafter.
        facts: What else the report holds.
    """
    if config.held_out is not None:
        kinds = {"held out": read_items(config.held_out)[: config.evaluate]}
    elif material is not None:
        kinds = held_out_items(material, config.evaluate)
    else:
        kinds = {}
    # measured as stored
    rounded = drafter.to(dtype=torch.float16).to(dtype=torch.float32)
    report = {name: acceptance(pipe, rounded, items, config.max_answer, shapes) for name, items in kinds.items()}
    folder = config.output / drafter.folder
    rounded.to(dtype=torch.float16).save_pretrained(folder)
    asked = max(map(len, kinds.values()), default=0)
    content = {**facts, **read_progress(config.output), "asked": asked, "measured": report}
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    return folder


def acceptance(
    pipe: VisionLanguagePipeline,
    drafter: DrafterNetwork,
    items: list[Item],
    max_new_tokens: int,
    shapes: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """Tokens per verification, one question at a time, greedily, for each of ``shapes``; and whether all were as plain.

    Leaves the drafter of ``pipe`` as it was.
    """
    saved, result = pipe.drafter, {}
    methods: dict[str, DrafterNetwork | None] = {"plain": None}
    methods |= {name: drafter.with_settings(**settings) for name, settings in shapes.items()}
    plain: list[list[int]] = []
    try:
        for name, method in methods.items():
            pipe.drafter = method
            tokens, parts = [], []
            for item in items:
                output = pipe(
                    item.prompt, list(item.images), max_new_tokens=max_new_tokens, seed=0, output_type="tokens"
                )
                tokens.append(output.tokens[0])
                parts.append(output.stats)
            plain = plain or tokens
            if method is not None:
                result[name] = {"length": round(_length(parts), 3), "equal": tokens == plain}
    finally:
        pipe.drafter = saved
    return result


def _length(parts: list[DecodeStats]) -> float:
    """Tokens per verification over all rows, bonus included."""
    rows = [row for part in parts for row in part.rows]
    return sum(row.tokens - 1 for row in rows) / max(1, sum(row.rounds for row in rows))
