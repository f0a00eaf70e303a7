"""Recipe of the embedded vision-language model: a LLaVA-class model that reads lines and knows emoji.

A small vision transformer with two-dimensional rotary positions, as in Pixtral, a projector, and a Llama over single
characters, all trained together on answers (Liu et al., 2023, "Visual Instruction Tuning"). Some of the answer's
characters are replaced in the input, so that the model looks rather than completes (compare Bengio et al., 2015,
"Scheduled Sampling for Sequence Prediction"). Beside the answers, what stands for a patch of a line must tell the character
that is drawn there, through the language model's own output head; without that, a model of this size and so short a
training writes likely words and never looks.

Symbols: B samples, P patches of a picture, S tokens of the longest sample.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration

from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.vlm_lines import CELL, WIDTH
from mmspec.training.vlm_tasks import TASKS, DataConfig, Material, Sample, draw_sample, load_material
from mmspec.training.vlm_tokenizer import SPECIALS, VOCAB_SIZE, picture_processor
from mmspec.training.workers import batch_number, workers

logger = logging.getLogger(__name__)

PAD, BEGIN, END, _, IMAGE, ANSWER = range(len(SPECIALS))
ONLY_LINES = tuple(float(task == "read") for task in TASKS)


@dataclass(frozen=True, kw_only=True)
class VlmTargetConfig(LoopConfig):
    """Settings of the training; those of every loop are in :class:`LoopConfig`.

    Args:
        data: Folder that ``mmspec train vlm data`` filled.
        hidden_size, num_layers, num_heads, num_kv_heads, intermediate_size: Of the language model.
        vision_size, vision_layers, vision_heads, vision_intermediate: Of the vision tower.
        patch_size: Side of a patch in pixels.
        shares: Shares of the tasks json, name, read.
        corruption: Part of the answer's characters that are replaced in the input.
        glyph_weight: Weight of the loss of patches, relative to that of answers.
        start_from: Output folder of an earlier run of this recipe that this one goes on from.
        glyph_steps: First steps, in which the vision tower learns letters alone; they cost a quarter of the others.
        max_positions: Most tokens of prompt and answer together.
        evaluate: Held-out samples of each kind at the end.
        max_answer: Longest answer in that evaluation, in characters.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    hidden_size: int = 192
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 4
    intermediate_size: int = 512
    vision_size: int = 192
    vision_layers: int = 3
    vision_heads: int = 4
    vision_intermediate: int = 384
    patch_size: int = 16
    shares: tuple[float, ...] = (0.2, 0.15, 0.65)
    corruption: float = 0.08
    glyph_weight: float = 1.0
    start_from: Path | None = None
    glyph_steps: int = 600
    max_positions: int = 512
    evaluate: int = 100
    max_answer: int = 96
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    average_decay: float = 0.998

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "data", Path(self.data))
        if self.start_from is not None:
            object.__setattr__(self, "start_from", Path(self.start_from))
        if len(self.shares) != len(TASKS) or min(self.shares) < 0 or not sum(self.shares):
            raise ValueError(f"`shares` must give {len(TASKS)} shares, of {', '.join(TASKS)}, got {self.shares}.")
        if self.evaluate < 1 or self.max_answer < 1:
            raise ValueError("`evaluate` and `max_answer` must be at least 1.")
        if not 0 <= self.corruption < 1 or min(self.glyph_weight, self.glyph_steps) < 0:
            raise ValueError("`corruption` must lie in [0, 1), `glyph_weight` and `glyph_steps` not be negative.")
        if self.hidden_size % self.num_heads or self.vision_size % (4 * self.vision_heads):
            raise ValueError(
                "Widths must be multiples of their heads, that of the vision tower of four times as many."
            )


def model_config(config: VlmTargetConfig) -> LlavaConfig:
    """The architecture."""
    vision = {
        "model_type": "pixtral", "hidden_size": config.vision_size, "intermediate_size": config.vision_intermediate,
        "num_hidden_layers": config.vision_layers, "num_attention_heads": config.vision_heads,
        "patch_size": config.patch_size, "image_size": WIDTH, "num_channels": 3,
        "head_dim": config.vision_size // config.vision_heads,
    }  # fmt: skip
    text = {
        "model_type": "llama", "vocab_size": VOCAB_SIZE, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_positions, "pad_token_id": PAD, "bos_token_id": BEGIN,
        "eos_token_id": END, "tie_word_embeddings": False,
    }  # fmt: skip
    return LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1,
        vision_feature_select_strategy="full", tie_word_embeddings=False,
    )  # fmt: skip


def first_model(config: VlmTargetConfig) -> Any:
    """The model that the run starts with: a new one, or that of ``config.start_from``.

    Raises:
        ValueError: If the earlier run's model has another architecture.
    """
    if config.start_from is None:
        return new_model(config)
    model = LlavaForConditionalGeneration.from_pretrained(
        config.start_from / "pipeline" / "model", dtype=torch.float32
    )
    ours, theirs = (architecture(found) for found in (model_config(config), model.config))
    if ours != theirs:
        changed = sorted(name for name in ours if ours[name] != theirs.get(name))
        raise ValueError(f"`start_from` {config.start_from} holds a model of other sizes: {', '.join(changed)}.")
    return model


def architecture(config: LlavaConfig) -> dict[str, Any]:
    """The sizes of a model, by name."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "patch_size",
        "vocab_size",
    )
    parts = {"text": config.text_config, "vision": config.vision_config}
    return {
        f"{part}.{name}": getattr(sizes, name)
        for part, sizes in parts.items()
        for name in names
        if hasattr(sizes, name)
    }


def new_model(config: VlmTargetConfig) -> Any:
    """An untrained model; its weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = LlavaForConditionalGeneration._from_config(model_config(config), attn_implementation="sdpa")
        for name, weight in model.named_parameters():  # the customary 0.02 is far too small for these widths
            if weight.ndim >= 2 and "embed_tokens" not in name:
                fan_in = weight[0].numel()
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                torch.nn.init.normal_(weight, std=fan_in**-0.5 * (0.3 if residual else 1.0))
        model.generation_config.eos_token_id = END
        model.generation_config.pad_token_id = PAD
    return model


@dataclass
class Batch:
    """Padded samples.

    Attributes:
        pictures: Groups of equally large pictures, each with pixels (n, 3, h, w) and sizes (n, 2), in the order of the rows.
        input_ids: Tokens (B, S), right-padded; answers with some characters replaced.
        labels: The true next token (B, S) where it belongs to an answer, else -100.
        glyphs: For each patch of all pictures in a row the token that is drawn there, padding where there is none, and -100
            in pictures that are no lines.
    """

    pictures: list[tuple[Tensor, Tensor]]
    input_ids: Tensor
    labels: Tensor
    glyphs: Tensor

    def to(self, device: str) -> Batch:
        """The same batch on ``device``."""
        pictures = [(pixels.to(device), sizes) for pixels, sizes in self.pictures]
        return Batch(pictures, self.input_ids.to(device), self.labels.to(device), self.glyphs.to(device))


class Collator:
    """Turns samples into batches.

    Args:
        patch_size: Side of a patch.
        group: Most pictures that run through the vision tower together; its attention is dense over all of them.
    """

    def __init__(self, patch_size: int, group: int = 8) -> None:
        self.processor, self.patch_size, self.group = picture_processor(patch_size), patch_size, group

    def __call__(self, samples: list[Sample], corruption: float = 0.0, generator: Any = None) -> Batch:
        ordered = sorted(samples, key=lambda sample: sample.image.shape)
        pictures, first = [], 0
        for place in range(1, len(ordered) + 1):
            ends = place == len(ordered) or ordered[place].image.shape != ordered[first].image.shape
            if ends or place - first == self.group:
                made = self.processor.image_processor(
                    [sample.picture for sample in ordered[first:place]], return_tensors="pt"
                )
                pictures.append((made["pixel_values"], torch.as_tensor(made["image_sizes"])))
                first = place
        rows = [self._row(sample) for sample in ordered]
        longest = max(len(ids) for ids, _ in rows)
        input_ids = torch.full((len(rows), longest), PAD)
        labels = torch.full((len(rows), longest), -100)
        for number, (ids, start) in enumerate(rows):
            input_ids[number, : len(ids)] = torch.tensor(ids)
            labels[number, start - 1 : len(ids) - 1] = torch.tensor(ids[start:])
        if corruption:
            spoilt = (torch.rand(labels.shape, generator=generator) < corruption) & (labels >= 0)
            other = torch.randint(len(SPECIALS), VOCAB_SIZE, labels.shape, generator=generator)
            input_ids = torch.where(spoilt & (input_ids >= len(SPECIALS)), other, input_ids)
        glyphs = torch.tensor([token for sample in ordered for token in self._glyphs(sample)])
        return Batch(pictures, input_ids, labels, glyphs)

    def _glyphs(self, sample: Sample) -> list[int]:
        """The token that each patch of a sample shows, row by row."""
        rows, columns = (side // self.patch_size for side in sample.image.shape[:2])
        if sample.task != "read" or self.patch_size != CELL:
            return [-100] * (rows * columns)
        tokens = self.processor.tokenizer.encode(sample.answer, add_special_tokens=False)
        return (tokens + [PAD] * (columns - len(tokens))) * rows

    def _row(self, sample: Sample) -> tuple[list[int], int]:
        """Tokens of a sample, and where its answer begins."""
        height, width = sample.image.shape[:2]
        patches = (height // self.patch_size) * (width // self.patch_size)
        encode = self.processor.tokenizer.encode
        prompt = [BEGIN, *[IMAGE] * patches, *encode(sample.question, add_special_tokens=False), ANSWER]
        return [*prompt, *encode(sample.answer, add_special_tokens=False), END], len(prompt)


def picture_features(model: Any, batch: Batch) -> Tensor:
    """What stands for the patches of all pictures of a batch, in a row (P, D)."""
    parts = [
        part
        for pixels, sizes in batch.pictures
        for part in model.model.get_image_features(
            pixel_values=pixels, image_sizes=sizes, return_dict=True
        ).pooler_output
    ]
    return torch.cat(parts)


def glyph_loss(model: Any, features: Tensor, glyphs: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of the characters ``glyphs`` (P,) that patches show, and the share that is the likeliest.

    The features are read by the language model's own output head: what it copies from a patch is then the character.
    """
    shown = glyphs >= 0
    if not bool(shown.any()):
        return features.new_zeros(()), {}
    read, drawn = model.lm_head(model.model.language_model.norm(features[shown])).float(), glyphs[shown]
    right = (read.detach().argmax(-1) == drawn)[drawn != PAD].float().mean().item()
    return F.cross_entropy(read, drawn), {"glyphs": right}


def answer_loss(model: Any, batch: Batch, glyph_weight: float = 0.0) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of the answers and, weighted, of the characters in patches; and the shares that are the likeliest."""
    features = picture_features(model, batch)
    visual = batch.input_ids == IMAGE
    embedded = model.model.get_input_embeddings()(batch.input_ids)
    embedded = embedded.masked_scatter(visual[..., None], features.to(embedded.dtype))
    # right padding is behind everything that is judged, so the causal mask is enough
    hidden = model.model.language_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
    judged = batch.labels >= 0
    logits = model.lm_head(hidden[judged]).float()
    wanted = batch.labels[judged]
    loss = F.cross_entropy(logits, wanted)
    numbers = {"characters": (logits.detach().argmax(-1) == wanted).float().mean().item()}
    if glyph_weight:
        glyphs, shares = glyph_loss(model, features, batch.glyphs)
        loss, numbers = loss + glyph_weight * glyphs, numbers | shares
    return loss, numbers


def train(config: VlmTargetConfig, material: Material | None = None) -> Path:
    """Train, measure on held-out samples, and save the pipeline under ``config.output / "pipeline"``.

    Args:
        config: Settings.
        material: What to learn; by default that of ``config.data``.

    Raises:
        ValueError: If the run is resumed with other settings.
    """
    from mmspec.training.vlm_export import export

    material = material or load_material(DataConfig(config.data))
    model = first_model(config).to(config.device)
    collate = Collator(config.patch_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        step = batch_number(step)
        early = step < config.glyph_steps
        shares = ONLY_LINES if early else config.shares
        samples = [
            draw_sample(material, shares, random.Random(f"vlm-{config.seed}-{step}-{row}"))
            for row in range(config.batch_size)
        ]
        batch = collate(samples, config.corruption, step_generator(config.seed, step)).to(config.device)
        with config.autocast:
            if early:
                return glyph_loss(model, picture_features(model, batch), batch.glyphs)
            return answer_loss(model, batch, config.glyph_weight)

    model.train()
    with workers():
        seconds = fit(model, loss_of, config)
    logger.info("vision-language model trained for %.1f minutes", seconds / 60)
    return export(model.eval().cpu(), config, material, config.output / "pipeline")
