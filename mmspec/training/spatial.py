"""Recipe of spatial heads: light heads learn the states of a frozen LlamaGen target on the target's own pictures.

State i is the one that code i is drawn from. The head of offset o reads [state i; embedding of code i] and predicts state
i + o. Loss: smooth-L1 to the target's state (SSD, arXiv 2606.20543), plus the cross-entropy between what the target's
output matrix makes of the true and of the predicted states, guided as in decoding. Nothing but the heads is trained; the
target's states are computed as the training goes, a pool of pictures at a time.

Symbols: B pictures, G branches, R = G * B model rows, N codes of a picture, n places of a step, D hidden size.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.drafters.fingerprint import fingerprint
from mmspec.drafters.initializers import INITIALIZERS
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.spatial import FOLDER, SpatialDrafter
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.pipelines.outputs import ImageOutput
from mmspec.training.image_drafter import (
    ImageDrafterConfig,
    gather_pictures,
    guided_logits,
    held_out_captions,
    load_target,
    read_target,
)
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.pictures import Pictures, Subject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SpatialHeadsConfig(LoopConfig):
    """Settings of the heads' training.

    Args:
        target: Embedded name, folder or hub id of a LlamaGen pipeline.
        prompts: Text file with one caption a line to draw; ``None`` draws the training captions of mmspec/emoji-t2i, or
            all classes of a target without captions.
        held_out: JSON list or text file of captions to draw nothing of, for the comparison in the end; ``None`` takes
            the target's ``prompts.json``, if it has one.
        num_pictures: Pictures sampled from the target.
        horizontal, vertical: Heads along the row and down the column.
        intermediate_size: Width of a head's SwiGLU; ``None`` is the target's hidden size.
        feature_weight, token_weight: Weights of the smooth-L1 and of the cross-entropy.
        pool_size, pool_steps: Pictures whose states are kept at a time, and steps before the next pool.
        places: Most places of a picture that a step learns from.

    Raises:
        ValueError: If a number is out of range.
    """

    target: str = "mmspec/emoji-t2i"
    prompts: Path | None = None
    held_out: Path | None = None
    num_pictures: int = 512
    horizontal: int = 5
    vertical: int = 2
    intermediate_size: int | None = None
    feature_weight: float = 1.0
    token_weight: float = 0.1
    pool_size: int = 128
    pool_steps: int = 100
    places: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_pictures", "pool_size", "pool_steps", "places"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be at least 1.")
        for name in ("feature_weight", "token_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must not be negative.")


@dataclass
class Pool:
    """Pictures with the states of the target: ``states`` (B, G, N, D) before each of the ``codes`` (B, N)."""

    states: Tensor
    codes: Tensor


def read_pool(config: SpatialHeadsConfig, pipe: LlamaGenPipeline, pictures: Pictures, number: int) -> Pool:
    """The states of pool ``number``, a function of the seed and the number."""
    order = torch.randperm(len(pictures), generator=step_generator(config.seed, -1 - number))
    chosen = pictures.select(order[: config.pool_size].tolist())
    both = Guidance(pipe.config.guidance_scale).branches > 1
    states, codes = [], []
    for kind in chosen.split():
        for start in range(0, len(kind), config.batch_size):
            part = kind.select(list(range(start, min(start + config.batch_size, len(kind)))))
            example = read_target(pipe, part, both=both)
            before = example.states[:, -part.codes.shape[1] :]  # the last condition slot, then all codes but the last
            states.append(before.unflatten(0, (example.branches, -1)).transpose(0, 1))
            codes.append(part.codes)
    return Pool(torch.cat(states), torch.cat(codes).to(states[0].device))


def losses(
    drafter: SpatialDrafter,
    pipe: LlamaGenPipeline,
    pool: Pool,
    rows: Tensor,
    config: SpatialHeadsConfig,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, float]]:
    """Mean loss of the heads on the pictures ``rows`` of ``pool``, and how often each head's best code is the target's."""
    states, codes = pool.states[rows], pool.codes[rows]
    count = codes.shape[1]
    embeddings = pipe.transformer.token_embedding(codes).detach()[:, None].expand(-1, states.shape[1], -1, -1)
    guidance = Guidance(pipe.config.guidance_scale)
    total, numbers = states.new_zeros(()), {}
    reached = [pair for pair in zip(drafter.offsets, drafter.heads, strict=True) if pair[0] < count]
    for offset, head in reached:
        places = torch.randperm(count - offset, generator=generator)[: config.places].to(states.device)
        pairs = torch.cat([states[:, :, places], embeddings[:, :, places]], dim=-1)
        true = states[:, :, places + offset]
        with config.autocast:
            predicted = head(pairs)
        rows_of = (part.transpose(0, 1).flatten(0, 1) for part in (predicted, true))  # branch after branch
        ours, wanted = (guided_logits(pipe.transformer, part, states.shape[1], guidance) for part in rows_of)
        feature = F.smooth_l1_loss(predicted.float(), true.float())
        token = -(wanted.softmax(-1) * ours.log_softmax(-1)).sum(-1).mean()
        total = total + config.feature_weight * feature + config.token_weight * token
        numbers[f"agree_{offset}"] = (ours.argmax(-1) == wanted.argmax(-1)).float().mean().item()
    return total / len(reached), numbers


def build(config: SpatialHeadsConfig, pipe: LlamaGenPipeline) -> SpatialDrafter:
    """Untrained heads for the target of ``pipe``: each first predicts the state that it reads."""
    sizes = pipe.transformer.config
    drafter = SpatialDrafter(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        row_length=sizes.grid_width,
        horizontal=config.horizontal,
        vertical=config.vertical,
        intermediate_size=config.intermediate_size or sizes.hidden_size,
        norm_eps=sizes.norm_eps,
        target=fingerprint(pipe.transformer),
    )
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim < 2:
                continue
            weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
            if name.endswith("joint.weight"):
                weight.mul_(0.1)[:, : sizes.hidden_size] += torch.eye(sizes.hidden_size)
            elif name.endswith("down.weight"):
                weight.zero_()
    return drafter


def sampling_config(config: SpatialHeadsConfig) -> ImageDrafterConfig:
    """What to sample, in the words of the recipe of image drafters."""
    return ImageDrafterConfig(
        output=config.output, steps=1, target=config.target, prompts=config.prompts, held_out=config.held_out,
        num_pictures=config.num_pictures, seed=config.seed, device=config.device,
    )  # fmt: skip


def train(config: SpatialHeadsConfig) -> Path:
    """Sample pictures, train the heads, compare them with guesses that need no training, and save drafter and report.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to draw.
    """
    sampling = sampling_config(config)
    pipe = load_target(sampling)
    pictures = gather_pictures(sampling, pipe)
    drafter = build(config, pipe).to(config.device)
    pools: dict[int, Pool] = {}

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        number = step // config.pool_steps
        if number not in pools:
            pools.clear()
            pools[number] = read_pool(config, pipe, pictures, number)
        pool, generator = pools[number], step_generator(config.seed, step)
        rows = torch.randperm(len(pool.codes), generator=generator)[: config.batch_size]
        return losses(drafter, pipe, pool, rows, config, generator)

    seconds = fit(drafter, loss_of, config)
    drafter.eval().requires_grad_(False)
    captions = held_out_captions(sampling)
    subjects = [Subject(caption) for caption in captions] or pictures.subjects
    report = {"minutes": seconds / 60, "pictures": len(pictures), "forwards": compare(pipe, drafter, subjects[:16])}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("spatial heads: %s", report)
    drafter.save_pretrained(config.output / FOLDER)
    return config.output / FOLDER


@torch.no_grad()
def compare(
    pipe: LlamaGenPipeline, drafter: SpatialDrafter, subjects: list[Subject], windows: tuple[int, ...] = (16, 64)
) -> dict[str, dict[str, int]]:
    """Target forwards of Jacobi windows by first guess and window, a picture of each subject with a new seed.

    Counted for every picture as if it were decoded alone: rows of a batch do not wait for one another.
    """
    saved, results = pipe.drafter, {}
    for name in ("spatial", *INITIALIZERS):
        forwards = dict.fromkeys(map(str, windows), 0)
        for window in windows:
            if name == "spatial":
                pipe.drafter = drafter.with_settings(window=window, controller="fixed")
            else:
                pipe.drafter = JacobiDrafter(window=window, initializer=name, controller="fixed")
            for by_class in (False, True):
                chosen = [number for number, subject in enumerate(subjects) if (subject.label >= 0) == by_class]
                if not chosen:
                    continue
                output = pipe(
                    None if by_class else [subjects[number].caption for number in chosen],
                    class_labels=[subjects[number].label for number in chosen] if by_class else None,
                    seed=[10_000 + number for number in chosen], micro_batch_size=8, output_type="tokens",
                )  # fmt: skip
                assert isinstance(output, ImageOutput)
                assert output.stats is not None
                forwards[str(window)] += sum(row.rounds + 1 for row in output.stats.rows)
        results[name] = forwards
    pipe.drafter = saved
    return results
