"""Recipe of the embedded text-to-image model: a small T5 encoder and LlamaGen decoder, trained together from scratch.

Cross-entropy of every image code given the condition and the codes before it (Sun et al., 2024, "Autoregressive Model
Beats Diffusion"), with part of the contexts corrupted (:mod:`mmspec.training.corruption`).
"""

from __future__ import annotations

import json
import logging
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import VQModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.image.captions import left_pad
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.training.captions import Condition, draw_condition, prefix_mask, tokenize, train_tokenizer
from mmspec.training.corruption import Corruption, corrupt
from mmspec.training.emoji import CLASSES, EmojiConfig, listed_emoji, load_emoji
from mmspec.training.loop import LoopConfig, fit, restore_average, restore_weights, step_generator
from mmspec.training.names import ICONIC
from mmspec.training.vq import encode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LlamaGenConfig(LoopConfig):
    """Settings of the decoder's training.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        vq: Folder of a trained tokenizer, the result of :func:`mmspec.training.vq.train`.
        hidden_size, num_layers, num_heads: Widths of the decoder.
        condition_length: Condition slots T; captions are cut to as many tokens.
        text_size, text_layers, text_vocab_size: Width and depth of the text encoder, and its pieces.
        corruption: Shares of samples with a corrupted context.
        start_from: Output folder of an earlier training with the same networks, whose newest weights are the start.
        classes: Classes whose emoji are learnt; their order is the class id.
        names: Emoji that are learnt, of those that the classes list; empty: all.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    vq: Path
    hidden_size: int = 192
    num_layers: int = 12
    num_heads: int = 3
    condition_length: int = 16
    text_size: int = 128
    text_layers: int = 2
    text_vocab_size: int = 1024
    corruption: Corruption = field(default_factory=Corruption)
    start_from: Path | None = None
    classes: tuple[str, ...] = tuple(CLASSES)
    names: tuple[str, ...] = ICONIC

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.condition_length < 2 or self.text_size % 32:
            raise ValueError(
                f"`condition_length` ({self.condition_length}) must be at least 2 and `text_size` "
                f"({self.text_size}) a multiple of 32."
            )


@dataclass
class Batch:
    """Conditions and codes of B samples.

    ``tokens`` and ``token_mask`` (B, T) right-padded; ``null`` (B,) marks dropped captions; ``labels`` (B,) holds
    class ids, -1 where a caption is used; ``inputs`` and ``targets`` (B, N) are corrupted and clean codes.
    """

    tokens: Tensor
    token_mask: Tensor
    null: Tensor
    labels: Tensor
    inputs: Tensor
    targets: Tensor


class CaptionedDecoder(nn.Module):
    """The text encoder and the decoder as one trainable module."""

    def __init__(self, text_encoder: T5EncoderModel, transformer: LlamaGenTransformer, compiled: bool = False) -> None:
        super().__init__()
        self.text_encoder, self.transformer = text_encoder, transformer
        self.decode = torch.compile(self._decode) if compiled else self._decode

    def captions(self, tokens: Tensor, token_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Left-padded text features (R, T, C) and their mask (R, T) for right-padded tokens (R, T)."""
        hidden = self.text_encoder(input_ids=tokens, attention_mask=token_mask).last_hidden_state
        return left_pad(hidden, token_mask)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of all image codes, (B, N, V)."""
        features, mask = self.captions(batch.tokens, batch.token_mask)
        features = torch.where(batch.null[:, None, None], self.transformer.null_caption.to(features.dtype), features)
        by_class = batch.labels >= 0
        # A class fills the last condition slot alone, where it would stand as the only slot of a class-only model.
        last_slot = torch.arange(mask.shape[1], device=mask.device) == mask.shape[1] - 1
        mask = torch.where(by_class[:, None], last_slot, mask)
        attention = prefix_mask(mask, batch.inputs.shape[1] - 1)
        return self.decode(features, batch.labels, by_class[:, None] & last_slot, batch.inputs[:, :-1], attention)

    def _decode(
        self, features: Tensor, labels: Tensor, class_slots: Tensor, inputs: Tensor, attention: Tensor
    ) -> Tensor:
        """The decoder's own forward pass, except that captions and classes share a batch."""
        net = self.transformer
        prefix = net.caption_projection(features)
        classes = net.class_embedding(labels.clamp(min=0))[:, None].to(prefix.dtype)
        prefix = torch.where(class_slots[:, :, None], classes, prefix)
        hidden = torch.cat([prefix, net.token_embedding(inputs).to(prefix.dtype)], dim=1)
        table = net.rotary[None, : hidden.shape[1]]
        rotary = (table[:, :, 0, None], table[:, :, 1, None])
        # Short sequences: plain matrix products beat the fused kernel, whose backward pass on CPUs is slow.
        with sdpa_kernel(SDPBackend.MATH):
            for layer, block in enumerate(net.layers):
                hidden = block(hidden, rotary, attention, None, layer)
        return net.head(net.norm(hidden[:, features.shape[1] - 1 :])).float()


def build(config: LlamaGenConfig, vq: VQModel) -> CaptionedDecoder:
    """An untrained model whose codes are those of ``vq``."""
    side = vq.config.sample_size // 2 ** (len(vq.config.block_out_channels) - 1)
    text = T5Config(
        vocab_size=config.text_vocab_size,
        d_model=config.text_size,
        d_kv=32,
        d_ff=2 * config.text_size,
        num_layers=config.text_layers,
        num_heads=config.text_size // 32,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
    )
    transformer = LlamaGenTransformer(
        vocab_size=vq.config.num_vq_embeddings,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        grid_height=side,
        grid_width=side,
        condition_length=config.condition_length,
        caption_dim=config.text_size,
        num_classes=len(config.classes),
    )
    _initialise(transformer, config.num_layers)
    return CaptionedDecoder(T5EncoderModel(text), transformer, config.compile)


def _initialise(transformer: LlamaGenTransformer, num_layers: int) -> None:
    """Normal weights; those that write to the residual stream are smaller the deeper the network."""
    for name, weight in transformer.named_parameters():
        if weight.ndim >= 2:
            residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * num_layers) if residual else 0.02)


@dataclass
class Dataset:
    """Codes (n, N) of n drawings with the name, class id and style of each."""

    codes: Tensor
    names: np.ndarray
    labels: np.ndarray
    styles: np.ndarray

    def indices(self, seed: int, step: int, batch_size: int) -> list[int]:
        """The drawings of a step: passes over the set, each in a random order of its own."""
        count = len(self.codes)
        positions = range(step * batch_size, (step + 1) * batch_size)
        orders = {
            e: torch.randperm(count, generator=step_generator(seed, -1 - e)) for e in {p // count for p in positions}
        }
        return [int(orders[p // count][p % count]) for p in positions]

    def batch(
        self, config: LlamaGenConfig, tokenizer: PreTrainedTokenizerFast, grid_width: int, num_codes: int, step: int
    ) -> Batch:
        """The batch of ``step``, a function of the seed and the step alone."""
        picks = self.indices(config.seed, step, config.batch_size)
        rng = random.Random(config.seed * 1_000_003 + step)
        conditions: list[Condition] = [
            draw_condition(self.names[i], int(self.labels[i]), self.styles[i], config.classes, rng) for i in picks
        ]
        tokens, token_mask = tokenize(tokenizer, [c.text for c in conditions], config.condition_length)
        targets = self.codes[picks]
        inputs = corrupt(targets, grid_width, num_codes, config.corruption, step_generator(config.seed, step))
        null = torch.tensor([c.null for c in conditions])
        labels = torch.tensor([c.label for c in conditions])
        moved = (t.to(config.device) for t in (tokens, token_mask, null, labels, inputs, targets))
        return Batch(*moved)


def load_dataset(config: LlamaGenConfig, vq: VQModel) -> Dataset:
    """The listed emoji of the configured classes as codes of ``vq``."""
    return load_drawings(config.data, vq, config.classes, config.names)


def load_drawings(data: Path, vq: VQModel, classes: tuple[str, ...], names: tuple[str, ...]) -> Dataset:
    """The emoji ``names`` of ``classes``, all of them if ``names`` is empty, in three styles as codes of ``vq``."""
    emoji = load_emoji(EmojiConfig(data=data, size=vq.config.sample_size, classes=classes))
    chosen, labels = listed_emoji(emoji, classes)
    if names:
        kept = np.isin(chosen.names, names)
        chosen, labels = chosen.select(kept), labels[kept]
    return Dataset(encode(vq, chosen.images), chosen.names, labels, chosen.styles)


def train(config: LlamaGenConfig) -> Path:
    """Train the text encoder and the decoder; save them, their tokenizer and a report in ``config.output``.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    torch.manual_seed(config.seed)
    vq = VQModel.from_pretrained(config.vq, torch_dtype=torch.float32).eval()
    tokenizer = train_tokenizer(config.classes, config.text_vocab_size, config.condition_length)
    dataset = load_dataset(config, vq)
    model = build(config, vq).to(config.device)
    if config.start_from is not None:
        restore_weights(model, config.start_from)
    grid_width, num_codes = math.isqrt(dataset.codes.shape[1]), vq.config.num_vq_embeddings

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = dataset.batch(config, tokenizer, grid_width, num_codes, step)
        with config.autocast:
            logits = model(batch)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        clean = (batch.inputs == batch.targets).all(dim=1)
        if not clean.any():
            return loss, {}
        with torch.no_grad():
            accuracy = (logits[clean].argmax(dim=-1) == batch.targets[clean]).float().mean().item()
        return loss, {"accuracy": accuracy}

    seconds = fit(model, loss_of, config)
    report = {"minutes": seconds / 60, "drawings": len(dataset.codes), **evaluate(model, dataset, tokenizer, config)}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("decoder: %s", report)
    return save(model, tokenizer, config.output)


@torch.no_grad()
def evaluate(
    model: CaptionedDecoder, dataset: Dataset, tokenizer: PreTrainedTokenizerFast, config: LlamaGenConfig
) -> dict[str, float]:
    """How well the training drawings are known under "name, style style".

    ``caption_loss`` (nats), ``caption_accuracy`` and ``caption_entropy_bits`` per code are under the right caption and
    a clean context. ``other_context_accuracy`` replaces the context by that of another drawing, so only the caption
    helps; ``other_caption_accuracy`` replaces the caption, so only the context does. A model that draws what it is
    told, whatever it drew before, has much of the first and little of the second.
    """
    texts = [f"{n.replace('-', ' ')}, {s} style" for n, s in zip(dataset.names, dataset.styles, strict=True)]
    totals, seen = dict.fromkeys(_MEASURES, 0.0), 0
    for start in range(0, len(texts), 64):
        codes = dataset.codes[start : start + 64].to(config.device)
        captions = tokenize(tokenizer, texts[start : start + 64], config.condition_length)
        tokens, mask = (part.to(config.device) for part in captions)
        null = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
        label = torch.full((len(codes),), -1, device=codes.device)

        def log_probs(tokens: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
            batch = Batch(tokens, mask, null, label, inputs, inputs)  # noqa: B023 - called within this iteration
            with torch.compiler.set_stance("force_eager"):  # other shapes than in training
                return model(batch).log_softmax(dim=-1)

        right = log_probs(tokens, mask, codes)
        other_context = log_probs(tokens, mask, codes.roll(1, dims=0))
        other_caption = log_probs(tokens.roll(1, dims=0), mask.roll(1, dims=0), codes)
        values = (
            -right.gather(-1, codes[:, :, None]),
            right.argmax(dim=-1) == codes,
            -(right.exp() * right).sum(dim=-1) / math.log(2),
            other_context.argmax(dim=-1) == codes,
            other_caption.argmax(dim=-1) == codes,
        )
        for name, value in zip(_MEASURES, values, strict=True):
            totals[name] += value.sum().item()
        seen += codes.numel()
    return {name: total / seen for name, total in totals.items()}


_MEASURES = (
    "caption_loss",
    "caption_accuracy",
    "caption_entropy_bits",
    "other_context_accuracy",
    "other_caption_accuracy",
)


def save(model: CaptionedDecoder, tokenizer: PreTrainedTokenizerFast, output: Path) -> Path:
    """Write the parts as ``transformer/``, ``text_encoder/`` and ``tokenizer/`` under ``output``."""
    model.transformer.save_pretrained(output / "transformer")
    model.text_encoder.save_pretrained(output / "text_encoder")
    tokenizer.save_pretrained(output / "tokenizer")
    return output


def load_checkpoint(
    config: LlamaGenConfig,
) -> tuple[CaptionedDecoder, PreTrainedTokenizerFast, VQModel, dict[str, float]]:
    """The averaged model of the running or finished training in ``config.output``, its steps and minutes."""
    vq = VQModel.from_pretrained(config.vq, torch_dtype=torch.float32).eval()
    model = build(config, vq)
    progress = restore_average(model, config.output)
    return model.eval(), train_tokenizer(config.classes, config.text_vocab_size, config.condition_length), vq, progress
