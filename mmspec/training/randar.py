"""Recipe of the embedded any-order model: a small RandAR decoder on the codes of the embedded emoji tokenizer.

Mean cross-entropy of every cell given the class and the cells before it in a fresh uniform order of every sample; the class
is dropped for a part of them (Pang et al., 2024, "RandAR"). The classes are the emoji; each has a drawing in three styles.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import VQModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmspec.image.any_order import teacher_forced
from mmspec.image.randar import RandARTransformer
from mmspec.training.emoji import CLASSES
from mmspec.training.llamagen import Dataset, load_drawings
from mmspec.training.loop import LoopConfig, fit, read_settings, restore_average, step_generator
from mmspec.training.names import ICONIC

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RandARConfig(LoopConfig):
    """Settings of the training.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        vq: Folder of a trained tokenizer such as that of ``mmspec/emoji-t2i``.
        hidden_size, num_layers, num_heads: Widths of the decoder.
        dropped_classes: Share of samples without a class.
        names: Emoji that are learnt; their order is the class number.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    vq: Path
    hidden_size: int = 128
    num_layers: int = 6
    num_heads: int = 4
    dropped_classes: float = 0.1
    names: tuple[str, ...] = ICONIC
    batch_size: int = 16
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("data", "vq"):
            object.__setattr__(self, name, Path(getattr(self, name)))
        if not 0 <= self.dropped_classes < 1:
            raise ValueError(f"`dropped_classes` is {self.dropped_classes}; it must lie in [0, 1).")
        if not self.names:
            raise ValueError("`names` is empty; give at least one emoji.")


@dataclass
class Samples:
    """A batch: ``labels`` (R,), ``tokens`` (R, M) of the slots, and the cells ``orders`` (R, M) of the slots."""

    labels: Tensor
    tokens: Tensor
    orders: Tensor


def draw_samples(config: RandARConfig, dataset: Dataset, step: int) -> Samples:
    """The batch of ``step``, a function of the seed and the step alone."""
    generator = step_generator(config.seed, step)
    picks = dataset.indices(config.seed, step, config.batch_size)
    labels = torch.tensor([config.names.index(dataset.names[i]) for i in picks])
    dropped = torch.rand(len(picks), generator=generator) < config.dropped_classes
    labels = torch.where(dropped, len(config.names), labels)
    codes = dataset.codes[picks]
    orders = torch.rand(codes.shape, generator=generator).argsort(dim=1)
    return Samples(*(part.to(config.device) for part in (labels, codes.gather(1, orders), orders)))


def build(config: RandARConfig, vq: VQModel, num_cells: int) -> RandARTransformer:
    """An untrained model of pictures of ``num_cells`` codes of ``vq``."""
    side = math.isqrt(num_cells)
    model = RandARTransformer(
        vocab_size=vq.config.num_vq_embeddings,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        grid_height=side,
        grid_width=side,
        num_classes=len(config.names),
    )
    for name, weight in model.named_parameters():
        if weight.ndim >= 2 or name == "query_embedding":
            residual = name.endswith((".out.weight", "feed_forward.down.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.num_layers) if residual else 0.02)
    return model


def train(config: RandARConfig) -> Path:
    """Train the decoder; save it and a report in ``config.output``.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    torch.manual_seed(config.seed)
    vq = VQModel.from_pretrained(config.vq, torch_dtype=torch.float32).eval()
    dataset = load_drawings(config.data, vq, tuple(CLASSES), config.names)
    model = build(config, vq, dataset.codes.shape[1]).to(config.device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = draw_samples(config, dataset, step)
        # Short sequences: plain matrix products beat the fused kernel, whose backward pass on CPUs is slow.
        with config.autocast, sdpa_kernel(SDPBackend.MATH):
            logits = teacher_forced(model, batch.labels, batch.tokens, batch.orders)
        with torch.no_grad():
            accuracy = (logits.argmax(dim=-1) == batch.tokens).float().mean().item()
        return F.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten()), {"accuracy": accuracy}

    seconds = fit(model, loss_of, config)
    report = {"minutes": seconds / 60, "drawings": len(dataset.codes), **evaluate(model.eval(), dataset, config)}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("any-order decoder: %s", report)
    model.save_pretrained(config.output / "transformer")
    return config.output


@torch.no_grad()
def evaluate(model: RandARTransformer, dataset: Dataset, config: RandARConfig) -> dict[str, float]:
    """How well the drawings are known under their class in random orders, per cell.

    ``loss`` in nats, ``accuracy`` and ``entropy_bits`` of all cells; ``late_accuracy`` of the second half of the slots.
    """
    totals, seen = dict.fromkeys(_MEASURES, 0.0), 0
    for start in range(0, len(dataset.codes), 32):
        part = slice(start, start + 32)
        codes = dataset.codes[part].to(config.device)
        labels = torch.tensor([config.names.index(name) for name in dataset.names[part]], device=codes.device)
        orders = torch.rand(codes.shape, generator=step_generator(config.seed, -1 - start)).argsort(dim=1)
        orders = orders.to(codes.device)
        tokens = codes.gather(1, orders)
        log_p = teacher_forced(model, labels, tokens, orders).log_softmax(dim=-1)
        right = log_p.argmax(dim=-1) == tokens
        totals["loss"] -= log_p.gather(-1, tokens[..., None]).sum().item()
        totals["accuracy"] += right.sum().item()
        totals["late_accuracy"] += 2 * right[:, codes.shape[1] // 2 :].sum().item()
        totals["entropy_bits"] -= (log_p.exp() * log_p).sum().item() / math.log(2)
        seen += codes.numel()
    return {name: total / seen for name, total in totals.items()}


_MEASURES = ("loss", "accuracy", "late_accuracy", "entropy_bits")


def saved_config(output: Path, steps: int | None = None) -> RandARConfig:
    """The settings of the running or finished training in ``output``; ``steps`` if that was its limit."""
    settings = read_settings(output)
    settings["names"] = tuple(settings["names"])
    return RandARConfig(output=output, steps=steps, minutes=1, **settings)


def load_checkpoint(config: RandARConfig) -> tuple[RandARTransformer, VQModel, Dataset, dict[str, float]]:
    """The averaged model of the newest checkpoint in ``config.output``, its tokenizer and data, its steps and minutes."""
    vq = VQModel.from_pretrained(config.vq, torch_dtype=torch.float32).eval()
    dataset = load_drawings(config.data, vq, tuple(CLASSES), config.names)
    model = build(config, vq, dataset.codes.shape[1])
    progress = restore_average(model, config.output)
    return model.eval(), vq, dataset, progress


def class_names(names: tuple[str, ...]) -> list[str]:
    """Names of the classes as a call writes them."""
    return [name.replace("-", " ") for name in names]
