"""Recipe of block drafters for vision-language models: a small network learns what a frozen target writes next.

Works in one process on any supported target: the target reads each batch, its states are the drafter's context, and
nothing is stored but the answers. See :mod:`mmspec.training.vlm_blocks` for the losses.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.stats import DecodeStats
from mmspec.drafters.block import FOLDER, BlockDrafter
from mmspec.drafters.block_network import default_taps
from mmspec.drafters.fingerprint import fingerprint
from mmspec.pipelines.auto_vision_language import AutoVisionLanguagePipeline
from mmspec.pipelines.vision_language import VisionLanguagePipeline
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.vlm_blocks import LOSSES, block_loss, corpus_blocks, draw_anchors, rollout_blocks
from mmspec.training.vlm_examples import (
    Example,
    corpus_examples,
    embedded_items,
    held_out_items,
    target_examples,
)
from mmspec.training.vlm_rollout import read_texts, roll_out, rollout_slots
from mmspec.training.vlm_tasks import DataConfig, Material, load_material
from mmspec.vlm.items import Item, read_items

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class VlmDrafterConfig(LoopConfig):
    """Settings of a drafter's training; those of every loop are in :class:`LoopConfig`.

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
        loss: One of :data:`LOSSES`.
        anchors: Blocks of an answer.
        gamma: How fast the weight of a block's slots falls.
        num_layers, num_heads, num_kv_heads, head_dim, intermediate_size: Widths of the drafter; ``None`` are the target's.
        num_taps, taps: How many layers of the target are read, or which.
        block_size: Slots of a block.
        mask_token_id: Token in the slots to fill; ``None`` is the target's padding.
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
    loss: str = "alr-ira"
    anchors: int = 8
    gamma: float = 4.0
    num_layers: int = 2
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    num_taps: int = 3
    taps: tuple[int, ...] | None = None
    block_size: int = 16
    mask_token_id: int | None = None
    evaluate: int = 24
    batch_size: int = 8
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    average_decay: float = 0.995

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.questions is None):
            raise ValueError("Give exactly one of `data` and `questions`.")
        if self.loss not in LOSSES:
            raise ValueError(f"Unknown `loss` {self.loss!r}; choose one of {', '.join(LOSSES)}.")
        if self.answers not in ("corpus", "target"):
            raise ValueError(f"`answers` is {self.answers!r}; choose 'corpus' or 'target'.")
        for name in ("num_examples", "max_answer", "anchors", "num_layers", "num_taps", "evaluate"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.block_size < 2 or (self.loss == "alr-ira" and self.block_size < 4):
            raise ValueError("`block_size` must be at least 2, and 4 for 'alr-ira'.")
        if not 0 <= self.corpus_noise < 1 or self.gamma <= 0:
            raise ValueError("`corpus_noise` must lie in [0, 1) and `gamma` be positive.")

    @property
    def depth(self) -> int:
        """Slots of a block that are drafted."""
        return self.block_size - 1


def build(config: VlmDrafterConfig, pipe: VisionLanguagePipeline) -> BlockDrafter:
    """An untrained drafter for the target of ``pipe``; its weights follow from the seed."""
    text = pipe.model.config.get_text_config()
    heads = config.num_heads or text.num_attention_heads
    mask = config.mask_token_id
    if mask is None:
        mask = text.pad_token_id if text.pad_token_id is not None else pipe.adapter.vocab_size - 1
    drafter = BlockDrafter(
        vocab_size=pipe.adapter.vocab_size,
        hidden_size=text.hidden_size,
        num_layers=config.num_layers,
        num_heads=heads,
        num_kv_heads=config.num_kv_heads or (heads if config.num_heads else text.num_key_value_heads),
        head_dim=config.head_dim or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate_size=config.intermediate_size or text.intermediate_size,
        taps=list(
            config.taps or default_taps(text.num_hidden_layers, min(config.num_taps, text.num_hidden_layers - 1))
        ),
        block_size=config.block_size,
        mask_token_id=mask,
        target=fingerprint(pipe.model),
    )
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim >= 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                weight.normal_(std=weight.shape[1] ** -0.5 * (0.3 if residual else 1.0), generator=generator)
    return drafter


def load_target(config: VlmDrafterConfig) -> VisionLanguagePipeline:
    """The frozen target, quiet, on the configured device."""
    pipe = AutoVisionLanguagePipeline.from_pretrained(config.target)
    pipe.set_progress_bar_config(disable=True)
    pipe.model.requires_grad_(False).eval()
    pipe.to(config.device)
    return pipe


def gather(config: VlmDrafterConfig, pipe: VisionLanguagePipeline, material: Material | None) -> list[Example]:
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


def loss_of_step(
    config: VlmDrafterConfig, pipe: VisionLanguagePipeline, drafter: BlockDrafter, examples: list[Example], step: int
) -> tuple[Tensor, dict[str, float]]:
    """Loss of one step; its examples, anchors and offsets follow from seed and step."""
    generator = step_generator(config.seed, step)
    rows = torch.randint(len(examples), (config.batch_size,), generator=generator).tolist()
    depth, rolls = config.depth, config.loss.startswith("alr")
    with torch.no_grad():
        texts = [examples[row].encode(pipe) for row in rows]
        primaries = -(-config.anchors // 2) if config.loss == "alr-ira" else config.anchors
        free = rollout_slots(primaries, depth) if rolls else 0
        reading = read_texts(pipe.adapter, texts, drafter.config.taps, free)
        anchors, real = draw_anchors(reading, primaries, generator)
        if rolls:
            rollout = roll_out(reading, anchors, depth, pipe.stop_tokens())
            secondary = draw_secondary(real, config.anchors - primaries, depth, generator)
            blocks = rollout_blocks(reading, rollout, real, config.gamma, secondary)
        else:
            blocks = corpus_blocks(reading, anchors, real, depth, config.loss, config.gamma)
    with config.autocast:
        return block_loss(drafter, reading, blocks)


def draw_secondary(real: Tensor, count: int, depth: int, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
    """For ``count`` further blocks a row, the anchor in whose continuation each begins and how far behind it."""
    if not count:
        return None
    chances = real.cpu().float().clamp_min(1e-9)
    parent = torch.multinomial(chances, count, replacement=True, generator=generator)
    offset = torch.randint(2, depth, parent.shape, generator=generator)
    return parent.to(real.device), offset.to(real.device)


def train(
    config: VlmDrafterConfig, pipe: VisionLanguagePipeline | None = None, material: Material | None = None
) -> Path:
    """Gather answers, train a drafter, measure it, and save it under ``config.output / "block_drafter"``.

    Args:
        config: Settings.
        pipe, material: The target and its questions; by default those that ``config`` names.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to learn.
    """
    pipe = pipe or load_target(config)
    if material is None and config.data is not None:
        material = load_material(DataConfig(config.data))
    examples = gather(config, pipe, material)
    drafter = build(config, pipe).to(config.device)
    drafter.train()
    seconds = fit(drafter, lambda step: loss_of_step(config, pipe, drafter, examples, step), config)
    logger.info("block drafter trained for %.1f minutes", seconds / 60)
    return finish(config, pipe, drafter.eval().requires_grad_(False), material)


def finish(
    config: VlmDrafterConfig, pipe: VisionLanguagePipeline, drafter: BlockDrafter, material: Material | None
) -> Path:
    """Measure acceptance on held-out questions and save drafter and report."""
    if config.held_out is not None:
        kinds = {"held out": read_items(config.held_out)[: config.evaluate]}
    elif material is not None:
        kinds = held_out_items(material, config.evaluate)
    else:
        kinds = {}
    # measured as stored
    rounded = drafter.to(dtype=torch.float16).to(dtype=torch.float32)
    report = {name: acceptance(pipe, rounded, items, config.max_answer) for name, items in kinds.items()}
    folder = config.output / FOLDER
    rounded.to(dtype=torch.float16).save_pretrained(folder)
    (folder / "report.json").write_text(json.dumps({"loss": config.loss, "measured": report}, indent=2) + "\n")
    return folder


def acceptance(
    pipe: VisionLanguagePipeline, drafter: BlockDrafter, items: list[Item], max_new_tokens: int
) -> dict[str, Any]:
    """Tokens per verification, one question at a time, greedily, as a chain and as trees; and whether all were as plain.

    Leaves the drafter of ``pipe`` as it was.
    """
    saved, result = pipe.drafter, {}
    methods: dict[str, BlockDrafter | None] = {"plain": None, "chain": drafter.with_settings(tree="chain")}
    methods |= {f"tree-{n}": drafter.with_settings(tree="dynamic", num_nodes=n) for n in (16, 32)}
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
