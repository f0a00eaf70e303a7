"""Recipe of image drafters: one layer learns the states of a frozen LlamaGen target on the target's own pictures.

Pair p holds the target's state of slot p and the code of slot p + 1, at the position of slot p + 1; it predicts the
state of slot p + 1. Loss, on image slots: smooth-L1 to the target's state, plus the cross-entropy between what the
target's head makes of the true and of the predicted state (Li et al., 2024, "EAGLE"; weights as in Jang et al., 2025,
"LANTERN"). Further steps read the drafter's own predictions, as drafting does (Li et al., 2025, "EAGLE-3").

Symbols: B pictures, R rows of the model batch, T condition slots, N codes of a picture, P pairs, D hidden size.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.guidance import Guidance
from mmspec.drafters.feature import FeatureDrafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.image.llamagen import LlamaGenTransformer, feed_forward_size
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.training.captions import prefix_mask
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.pictures import Pictures, emoji_subjects, listed_subjects, sample_pictures
from mmspec.training.unrolling import GrowingKeys, unrolled

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImageDrafterConfig(LoopConfig):
    """Settings of a drafter's training.

    Args:
        target: Embedded name, folder or hub id of a LlamaGen pipeline.
        prompts: Text file with one caption a line to draw; ``None`` draws the training captions of mmspec/emoji-t2i, or
            all classes of a target without captions.
        held_out: JSON list or text file of captions to draw nothing of, for evaluation; ``None`` takes the target's
            ``prompts.json``, if it has one.
        num_pictures: Pictures sampled from the target.
        num_layers, intermediate_size, input_norm: Widths of the drafter; ``None`` is the target's own feed-forward width.
        branches: ``both`` runs the conditional and the null branch of each picture and judges their guided logits, as
            decoding does; ``drop`` runs one, the null one in ``null_share`` of the pictures.
        null_share: Share of pictures without their condition, where ``branches`` is ``drop``.
        feature_weight, token_weight: Weights of the smooth-L1 and of the cross-entropy.
        feature_noise: Width of uniform noise on the states that are read, times 512 / P.
        keep_states: Keep the target's states of every picture in memory, in half precision, instead of running the target
            in every step: 2 x (T + N) x D x 2 bytes a picture.
        steps_ahead: Steps that the drafter is trained to predict; from the second on it reads itself.
        step_decay: Weight of each step relative to the one before it.

    Raises:
        ValueError: If a number is out of range.
    """

    target: str = "mmspec/emoji-t2i"
    prompts: Path | None = None
    held_out: Path | None = None
    num_pictures: int = 3072
    num_layers: int = 1
    intermediate_size: int | None = None
    input_norm: bool = False
    branches: str = "drop"
    null_share: float = 0.1
    feature_weight: float = 1.0
    token_weight: float = 0.1
    feature_noise: float = 0.2
    keep_states: bool = False
    steps_ahead: int = 1
    step_decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_pictures < 1 or self.num_layers < 1 or self.steps_ahead < 1:
            raise ValueError("`num_pictures`, `num_layers` and `steps_ahead` must be at least 1.")
        if self.branches not in ("both", "drop"):
            raise ValueError(f"`branches` is {self.branches!r}; choose 'both' or 'drop'.")
        for name in ("feature_weight", "token_weight", "feature_noise"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.null_share <= 1 or not 0 < self.step_decay <= 1:
            raise ValueError("`null_share` must lie in [0, 1] and `step_decay` in (0, 1].")


@dataclass
class Example:
    """What the target made of R rows: its states and what the drafter's pairs are.

    Attributes:
        states: Last normalised states of slots 0 .. T + N - 2 (R, P + 1, D).
        tokens: Codes of slots 1 .. T + N - 2 (R, P), zero in condition slots.
        condition_mask: Real condition slots but the last (R, T - 1); the last one is in the first image pair.
        branches: Rows per picture; conditional rows first.
    """

    states: Tensor
    tokens: Tensor
    condition_mask: Tensor
    branches: int = 1

    @property
    def num_condition_pairs(self) -> int:
        return self.condition_mask.shape[1]


class StateStore:
    """The target's states of pictures, run when they are first asked for.

    Pictures are run one by one, both branches together, so that a state does not depend on what else was asked for.
    """

    def __init__(self, pipe: LlamaGenPipeline, pictures: Pictures) -> None:
        self.pipe, self.pictures = pipe, pictures
        self.known: dict[int, Example] = {}

    def read(self, rows: list[int], null: Tensor | None, both: bool) -> Example:
        """As :func:`read_target` of the pictures at ``rows``."""
        for row in rows:
            if row not in self.known:
                example = read_target(self.pipe, self.pictures.select([row]), both=True)
                self.known[row] = replace(example, states=example.states.half())
        examples = [self.known[row] for row in rows]
        branch = torch.zeros(len(rows), dtype=torch.long) if null is None else null.long()
        parts: dict[str, Tensor] = {}
        for name in ("states", "tokens", "condition_mask"):
            values = torch.stack([getattr(example, name) for example in examples], dim=1)  # (2, B, ...)
            parts[name] = values.flatten(0, 1) if both else values[branch, torch.arange(len(rows))]
        parts["states"] = parts["states"].to(self.pipe.transformer.dtype)
        return Example(**parts, branches=2 if both else 1)


@torch.no_grad()
def read_target(pipe: LlamaGenPipeline, pictures: Pictures, null: Tensor | None = None, both: bool = False) -> Example:
    """Run the frozen target over ``pictures``, all of captions or all of classes.

    Args:
        pipe: The target.
        pictures: B pictures.
        null: Which of them lose their condition (B,).
        both: Add the null branch of every picture.
    """
    transformer: LlamaGenTransformer = pipe.transformer
    codes = pictures.codes.to(transformer.device)
    if pictures.subjects[0].label >= 0:
        labels = torch.tensor([subject.label for subject in pictures.subjects], device=codes.device)
        none = torch.full_like(labels, transformer.config.num_classes)
        labels = labels if null is None else torch.where(null.to(codes.device), none, labels)
        given: dict[str, Any] = {"class_labels": torch.cat([labels, none]) if both else labels}
        mask = torch.ones(len(given["class_labels"]), 1, dtype=torch.bool, device=codes.device)
    else:
        condition = pipe.encode_prompt([subject.caption for subject in pictures.subjects], truncate=True)
        assert condition.caption_embeds is not None
        assert condition.caption_mask is not None
        embeds, mask = condition.caption_embeds, condition.caption_mask.bool()
        nothing = transformer.null_caption.to(embeds).expand_as(embeds)
        embeds = embeds if null is None else torch.where(null.to(embeds.device)[:, None, None], nothing, embeds)
        given = {"caption_embeds": torch.cat([embeds, nothing]) if both else embeds}
        mask = mask.repeat(2, 1) if both else mask
    codes = codes.repeat(len(mask) // len(codes), 1)
    slots = transformer.config.condition_length
    positions = torch.arange(slots - mask.shape[1], slots + codes.shape[1] - 1, device=codes.device)[None]
    attention = prefix_mask(mask, codes.shape[1] - 1)
    states = transformer(codes[:, :-1], **given, position_ids=positions, attention_mask=attention, num_logits=1).hidden
    # pair p holds the code of slot p + 1; the codes of condition slots are 0, as in decoding
    tokens = F.pad(codes[:, :-1], (mask.shape[1] - 1, 0))
    return Example(states, tokens, mask[:, :-1], branches=2 if both else 1)


def unroll(
    drafter: FeatureDrafter,
    transformer: LlamaGenTransformer,
    example: Example,
    steps: int,
    noise: Tensor | None = None,
) -> list[Tensor]:
    """The drafter's predictions over ``steps`` steps, see :mod:`mmspec.training.unrolling`.

    In step i row p reads the code of slot p + 1 + i.

    Args:
        noise: Added to the states that step 0 reads (R, P, D).

    Returns:
        States of the slots p + 1 + i, predicted in step i by row p, for each step (R, P, D).
    """
    pairs = example.tokens.shape[1]
    first = transformer.config.condition_length - example.num_condition_pairs  # position of the first pair's code
    mask = prefix_mask(example.condition_mask, pairs - example.num_condition_pairs)
    features = example.states[:, :-1] if noise is None else example.states[:, :-1] + noise
    places = torch.arange(first, first + pairs, device=mask.device)

    def forward(step: int, features: Tensor, mask: Tensor, keys: GrowingKeys) -> Tensor:
        tokens = F.pad(example.tokens[:, step:], (0, step))
        rotary = transformer.rotary_at((places + step).clamp_max(len(transformer.rotary) - 1)[None])
        return drafter(transformer.token_embedding(tokens).to(features.dtype), features, rotary, mask, keys)

    return unrolled(forward, features, mask, steps)


def losses(
    drafter: FeatureDrafter,
    transformer: LlamaGenTransformer,
    example: Example,
    config: ImageDrafterConfig,
    guidance: Guidance,
    noise: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of the recipe, and the share of codes in which drafter and target agree at each step."""
    total, numbers = example.states.new_zeros(()), {}
    weights = 0.0
    for step, predicted in enumerate(unroll(drafter, transformer, example, config.steps_ahead, noise)):
        # rows whose last true code is an image code, and whose prediction has a true state
        first, last = example.num_condition_pairs, predicted.shape[1] - step
        ours, true = predicted[:, first:last], example.states[:, first + 1 + step :]
        with torch.no_grad():
            wanted = guided_logits(transformer, true, example.branches, guidance)
        logits = guided_logits(transformer, ours, example.branches, guidance)
        feature = F.smooth_l1_loss(ours.float(), true.float())
        token = -(wanted.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        weight = config.step_decay**step
        total = total + weight * (config.feature_weight * feature + config.token_weight * token)
        weights += weight
        numbers[f"accuracy_{step + 1}"] = (logits.argmax(-1) == wanted.argmax(-1)).float().mean().item()
        numbers |= {"feature": feature.item(), "token": token.item()} if step == 0 else {}
    return total / weights, numbers


def guided_logits(transformer: LlamaGenTransformer, states: Tensor, branches: int, guidance: Guidance) -> Tensor:
    """Float32 logits of ``states`` (R, n, D), branches merged where there are two."""
    logits = transformer.head(states.to(transformer.dtype)).float()
    if branches == 1:
        return logits
    return guidance.merge(logits, torch.zeros(1, 1, dtype=torch.long, device=logits.device))


def build(config: ImageDrafterConfig, transformer: LlamaGenTransformer) -> FeatureDrafter:
    """An untrained drafter for ``transformer``; its weights follow from the seed."""
    sizes = transformer.config
    drafter = FeatureDrafter(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        intermediate_size=config.intermediate_size or sizes.intermediate_size or feed_forward_size(sizes.hidden_size),
        num_layers=config.num_layers,
        norm_eps=sizes.norm_eps,
        input_norm=config.input_norm,
        target=fingerprint(transformer),
    )
    generator = torch.Generator().manual_seed(config.seed)
    width = sizes.hidden_size
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if weight.ndim >= 2:
                std = weight.shape[1] ** -0.5
                residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                weight.normal_(std=0.1 * std if residual else std, generator=generator)
            elif name.endswith("bias"):
                weight.zero_()
        # begin with the state as it is, and the embedding, whose numbers may be small, at the size of a unit vector
        drafter.joint.weight[:, :width].mul_(2**0.5 / transformer.token_embedding.weight.float().std())
        drafter.joint.weight[:, width:] = torch.eye(width)
    return drafter


def load_target(config: ImageDrafterConfig) -> LlamaGenPipeline:
    """The frozen target, quiet, on the configured device."""
    pipe = LlamaGenPipeline.from_pretrained(config.target)
    pipe.set_progress_bar_config(disable=True)
    pipe.transformer.requires_grad_(False)
    return pipe.to(config.device)


def gather_pictures(config: ImageDrafterConfig, pipe: LlamaGenPipeline) -> Pictures:
    """Sample the training pictures, or read those that an earlier run sampled."""
    if config.prompts is not None:
        captions = read_captions(config.prompts)
        subjects = listed_subjects(config.num_pictures, config.seed, captions, None)
    elif config.target == "mmspec/emoji-t2i":
        subjects = emoji_subjects(config.num_pictures, config.seed, set(held_out_captions(config)))
    else:
        subjects = listed_subjects(config.num_pictures, config.seed, None, pipe.transformer.config.num_classes)
    return sample_pictures(pipe, subjects, config.output / "pictures", config.seed)


def held_out_captions(config: ImageDrafterConfig) -> list[str]:
    """Captions for evaluation: the configured file, or the target's ``prompts.json``, or none."""
    from mmspec.models.loading import local_folder

    if config.held_out is not None:
        return read_captions(config.held_out)
    folder = local_folder(config.target)
    path = None if folder is None else folder / "prompts.json"
    return read_captions(path) if path is not None and path.is_file() else []


def read_captions(path: Path) -> list[str]:
    """A JSON list of captions, or the non-empty lines of a text file; ValueError if there are none."""
    text = Path(path).read_text()
    captions = json.loads(text) if Path(path).suffix == ".json" else text.splitlines()
    captions = [caption.strip() for caption in captions if caption.strip()]
    if not captions:
        raise ValueError(f"{path} holds no captions.")
    return captions


def draw_batch(config: ImageDrafterConfig, kinds: tuple[Pictures, ...], step: int) -> tuple[int, list[int], Tensor]:
    """Kind and rows of the pictures of a step, and which lose their condition (B,)."""
    generator = step_generator(config.seed, step)
    shares = torch.tensor([float(len(kind)) for kind in kinds])
    kind = int(torch.multinomial(shares, 1, generator=generator))
    rows = torch.randint(len(kinds[kind]), (config.batch_size,), generator=generator).tolist()
    return kind, rows, torch.rand(config.batch_size, generator=generator) < config.null_share


def train(config: ImageDrafterConfig) -> Path:
    """Sample pictures, train a drafter, measure it, and save it under ``config.output / "feature_drafter"``.

    Raises:
        ValueError: If the run is resumed with other settings, or there is nothing to draw.
    """
    from mmspec.training.drafter_report import finish

    pipe = load_target(config)
    kinds = gather_pictures(config, pipe).split()
    guidance = Guidance(pipe.config.guidance_scale)
    both = config.branches == "both" and guidance.branches > 1
    drafter = build(config, pipe.transformer).to(config.device)
    stores = [StateStore(pipe, kind) for kind in kinds]

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        kind, rows, dropped = draw_batch(config, kinds, step)
        null = None if both else dropped
        if config.keep_states:
            example = stores[kind].read(rows, null, both)
        else:
            example = read_target(pipe, kinds[kind].select(rows), null, both)
        noise = None
        if config.feature_noise:
            shape, width = example.states[:, 1:].shape, config.feature_noise * 512 / example.tokens.shape[1]
            noise = (torch.rand(shape, generator=step_generator(config.seed, -1 - step)) - 0.5) * width
            noise = noise.to(example.states)
        with config.autocast:
            return losses(drafter, pipe.transformer, example, config, guidance, noise)

    seconds = fit(drafter, loss_of, config)
    return finish(config, pipe, drafter.eval(), seconds)
