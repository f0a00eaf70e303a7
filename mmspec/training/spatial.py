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

from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.guidance import Guidance
from mmspec.drafters.fingerprint import fingerprint
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.drafters.spatial import FOLDER, SpatialDrafter
from mmspec.image.llamagen_target import LlamaGenModel
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.runner.runner import Runner
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.pictures import Pictures, emoji_subjects, listed_subjects, sample_pictures

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SpatialHeadsConfig(LoopConfig):
    """Settings of the heads' training.

    Args:
        target: Embedded name, folder or hub id of a LlamaGen pipeline.
        prompts: Text file with one caption a line to draw; ``None`` draws the training captions of mmspec/emoji-t2i, or
            all classes of a target without captions.
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
    """Pictures with the states of the target: ``states`` (B, G, N, D), ``codes`` (B, N)."""

    states: Tensor
    codes: Tensor


@torch.no_grad()
def read_states(pipe: LlamaGenPipeline, pictures: Pictures) -> Tensor:
    """The target's states (B, G, N, D) before every code of ``pictures``, all of captions or all of classes."""
    if pictures.subjects[0].label >= 0:
        condition = pipe.encode_classes([subject.label for subject in pictures.subjects])
    else:
        condition = pipe.encode_prompt([subject.caption for subject in pictures.subjects], truncate=True)
    guidance = Guidance(pipe.config.guidance_scale)
    device = pipe.transformer.device
    model = LlamaGenModel(pipe.transformer, condition, guidance.branches > 1, device)
    count = pictures.codes.shape[1]
    runner = Runner(model, guidance, count, count)
    first = runner.prefill().hidden
    rest = runner.verify(Draft(pictures.codes[:, :-1].to(device), DraftLaw.DETERMINISTIC), 1).hidden
    assert first is not None
    assert rest is not None
    states = torch.cat([first[:, -1:], rest], dim=1)
    return states.unflatten(0, (guidance.branches, -1)).transpose(0, 1)


def read_pool(config: SpatialHeadsConfig, pipe: LlamaGenPipeline, pictures: Pictures, number: int) -> Pool:
    """The states of pool ``number``, a function of the seed and the number."""
    order = torch.randperm(len(pictures), generator=step_generator(config.seed, -1 - number))
    chosen = pictures.select(order[: config.pool_size].tolist())
    states, codes = [], []
    for kind in chosen.split():
        for start in range(0, len(kind), config.batch_size):
            part = kind.select(list(range(start, min(start + config.batch_size, len(kind)))))
            states.append(read_states(pipe, part))
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
    reached = [offset for offset in drafter.offsets if offset < count]
    for offset, head in zip(reached, drafter.heads, strict=False):
        places = torch.randperm(count - offset, generator=generator)[: config.places].to(states.device)
        pairs = torch.cat([states[:, :, places], embeddings[:, :, places]], dim=-1)
        true = states[:, :, places + offset]
        with config.autocast:
            predicted = head(pairs)
        ours, wanted = (guided_logits(pipe, part, guidance) for part in (predicted, true))
        feature = F.smooth_l1_loss(predicted.float(), true.float())
        token = -(wanted.softmax(-1) * ours.log_softmax(-1)).sum(-1).mean()
        total = total + config.feature_weight * feature + config.token_weight * token
        numbers[f"agree_{offset}"] = (ours.argmax(-1) == wanted.argmax(-1)).float().mean().item()
    return total / len(reached), numbers


def guided_logits(pipe: LlamaGenPipeline, states: Tensor, guidance: Guidance) -> Tensor:
    """Float32 logits (B, n, V) of ``states`` (B, G, n, D), branches merged."""
    logits = pipe.transformer.head(states.transpose(0, 1).flatten(0, 1).to(pipe.transformer.dtype)).float()
    return guidance.merge(logits, torch.zeros(1, 1, dtype=torch.long, device=logits.device))


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


def load_target(config: SpatialHeadsConfig) -> LlamaGenPipeline:
    """The frozen target, quiet, on the configured device."""
    pipe = LlamaGenPipeline.from_pretrained(config.target)
    pipe.set_progress_bar_config(disable=True)
    pipe.transformer.requires_grad_(False)
    return pipe.to(config.device)


def gather_pictures(config: SpatialHeadsConfig, pipe: LlamaGenPipeline) -> Pictures:
    """Sample the training pictures, or read those that an earlier run sampled.

    Raises:
        ValueError: If there is nothing to draw.
    """
    if config.prompts is None and config.target == "mmspec/emoji-t2i":
        subjects = emoji_subjects(config.num_pictures, config.seed, set())
    else:
        captions = None
        if config.prompts is not None:
            captions = [line.strip() for line in Path(config.prompts).read_text().splitlines() if line.strip()]
            if not captions:
                raise ValueError(f"{config.prompts} holds no captions.")
        subjects = listed_subjects(config.num_pictures, config.seed, captions, pipe.transformer.config.num_classes)
    return sample_pictures(pipe, subjects, config.output / "pictures", config.seed)


def train(config: SpatialHeadsConfig) -> Path:
    """Sample pictures, train the heads, compare them with guesses that need no training, and save drafter and report.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to draw.
    """
    pipe = load_target(config)
    pictures = gather_pictures(config, pipe)
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
    report = {"minutes": seconds / 60, "pictures": len(pictures), "forwards": compare(pipe, drafter, pictures)}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("spatial heads: %s", report)
    drafter.save_pretrained(config.output / FOLDER)
    return config.output / FOLDER


@torch.no_grad()
def compare(
    pipe: LlamaGenPipeline, drafter: SpatialDrafter, pictures: Pictures, count: int = 16, windows: tuple[int, ...] = (16, 64)
) -> dict[str, dict[str, int]]:
    """Target forwards for the first ``count`` captions (or classes) with new seeds, one at a time, by window.

    The rows are the heads with each initialiser behind them that needs no training, and these initialisers alone.
    """
    kind = next(kind for kind in pictures.split() if len(kind))
    subjects, saved = kind.subjects[:count], pipe.drafter
    results: dict[str, dict[str, int]] = {}
    for window in windows:
        methods: dict[str, SpatialDrafter | JacobiDrafter] = {
            f"jacobi-{name}": JacobiDrafter(window=window, initializer=name, controller="fixed")
            for name in ("uniform", "mix")
        }
        methods["spatial"] = drafter.with_settings(window=window, controller="fixed")
        for name, method in methods.items():
            pipe.drafter = method
            total = 0
            for number, subject in enumerate(subjects):
                by_class = subject.label >= 0
                output = pipe(
                    None if by_class else subject.caption, class_labels=subject.label if by_class else None,
                    seed=10_000 + number, output_type="tokens",
                )  # fmt: skip
                total += output.stats.forwards  # type: ignore[union-attr]
            results.setdefault(name, {})[str(window)] = total
    pipe.drafter = saved
    return results
