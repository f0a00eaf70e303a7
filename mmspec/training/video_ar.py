"""Recipe of the embedded video model: a small VideoARTransformer of the Video2World kind and a T5 encoder, from scratch.

Cross-entropy of every code after the first latent frame, given the caption and the codes before it, plus 1e-4 times the
mean squared log-partition (NVIDIA, 2025, section 5.1). Part of the contexts is corrupted, most of them toward the codes of
the frame before, see :mod:`mmspec.training.corruption`: a Jacobi window that starts from these codes then meets a decoder
that knows such windows. Part of the captions is dropped: then the context is zeros.
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
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.image.captions import zero_padding
from mmspec.image.video_ar import VideoARTransformer
from mmspec.image.video_tokenizer import DiscreteVideoTokenizer
from mmspec.training.captions import tokenize, train_bpe
from mmspec.training.corruption import Corruption, corrupt
from mmspec.training.loop import LoopConfig, fit, read_settings, restore_average, step_generator
from mmspec.training.video_clips import ClipConfig, ClipSet, all_captions, load_clips, to_videos

logger = logging.getLogger(__name__)

_LOG_PARTITION_WEIGHT = 1e-4


@dataclass(frozen=True, kw_only=True)
class VideoARConfig(LoopConfig):
    """Settings of the decoder's training.

    Args:
        data: Folder of the emoji archives, see :class:`mmspec.training.emoji.EmojiConfig`.
        tokenizer: Folder of a trained tokenizer, the result of :func:`mmspec.training.video_tokenizer.train`.
        hidden_size, num_layers, num_heads, num_kv_heads, intermediate_size: Widths of the decoder.
        context_length: Text slots; captions are cut to as many tokens.
        text_size, text_layers, text_vocab_size: Width and depth of the text encoder, and its pieces.
        dropped_captions: Share of samples without a caption.
        corruption: Shares of samples with a corrupted context.
        start_from: Folder of an exported model of the same tokenizer, whose decoder, text encoder and text pieces are the
            start; the widths are then its own.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    tokenizer: Path
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    intermediate_size: int = 384
    context_length: int = 12
    text_size: int = 64
    text_layers: int = 1
    text_vocab_size: int = 400
    dropped_captions: float = 0.15
    corruption: Corruption = field(default_factory=lambda: Corruption(suffix=0.0, scattered=0.25, stale=0.45))
    start_from: Path | None = None
    batch_size: int = 16
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("data", "tokenizer", "start_from"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        if self.hidden_size % self.num_heads or self.text_size % 16:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_heads` ({self.num_heads}) and "
                f"`text_size` ({self.text_size}) one of 16."
            )
        if not 0 <= self.dropped_captions < 1:
            raise ValueError(f"`dropped_captions` is {self.dropped_captions}; it must lie in [0, 1).")


class CaptionedVideoDecoder(nn.Module):
    """The text encoder and the decoder as one trainable module."""

    def __init__(self, text_encoder: T5EncoderModel, transformer: VideoARTransformer) -> None:
        super().__init__()
        self.text_encoder, self.transformer = text_encoder, transformer

    def forward(self, tokens: Tensor, mask: Tensor, null: Tensor, inputs: Tensor) -> Tensor:
        """Logits of all codes after the first latent frame, (R, N - frame, V).

        ``tokens`` and ``mask`` (R, C) are right-padded captions, dropped where ``null`` (R,); ``inputs`` (R, N) codes.
        """
        net = self.transformer
        hidden = self.text_encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        context = zero_padding(hidden, mask * ~null[:, None])
        begin = inputs.new_full((len(inputs), 1), net.config.begin_token)
        sequence = torch.cat([begin, inputs[:, :-1]], dim=1)
        positions = torch.arange(sequence.shape[1], device=inputs.device)[None]
        # Short sequences: plain matrix products beat the fused kernel, whose backward pass on CPUs is slow.
        with sdpa_kernel(SDPBackend.MATH):
            output = net(
                sequence,
                position_ids=positions,
                context=net.read_context(context),
                num_logits=inputs.shape[1] - frame_length(net),
            )
        return output.logits


def frame_length(transformer: VideoARTransformer) -> int:
    """Codes per latent frame."""
    _, rows, columns = transformer.config.latent_shape
    return rows * columns


def build(config: VideoARConfig, tokenizer: DiscreteVideoTokenizer, clips: ClipConfig) -> CaptionedVideoDecoder:
    """An untrained model whose codes are those of ``tokenizer``, or that of ``config.start_from``.

    Raises:
        ValueError: If the model to start from reads other codes or other clips.
    """
    side = clips.frame_size // tokenizer.config.spatial_compression
    latent_shape = tokenizer.latent_frames(clips.num_frames), side, side
    if config.start_from is not None:
        return _started(config.start_from, tokenizer.num_codes, latent_shape)
    text = T5Config(
        vocab_size=config.text_vocab_size,
        d_model=config.text_size,
        d_kv=16,
        d_ff=2 * config.text_size,
        num_layers=config.text_layers,
        num_heads=config.text_size // 16,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
    )
    transformer = VideoARTransformer(
        vocab_size=tokenizer.num_codes,
        num_embeddings=tokenizer.num_codes + 1,
        begin_token=tokenizer.num_codes,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.hidden_size // config.num_heads,
        intermediate_size=config.intermediate_size,
        latent_shape=latent_shape,
        context_dim=config.text_size,
        absolute_positions=True,
        rope_theta=1000.0,  # the longest axis has few positions
    )
    for name, weight in transformer.named_parameters():
        if weight.ndim >= 2:
            residual = name.endswith((".out.weight", "feed_forward.down.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.num_layers) if residual else 0.02)
    return CaptionedVideoDecoder(T5EncoderModel(text), transformer)


def _started(folder: Path, num_codes: int, latent_shape: tuple[int, int, int]) -> CaptionedVideoDecoder:
    """The trainable parts of the exported model in ``folder``."""
    transformer = VideoARTransformer.from_pretrained(folder / "transformer", torch_dtype=torch.float32)
    found = transformer.config.vocab_size, tuple(transformer.config.latent_shape)
    if found != (num_codes, latent_shape):
        raise ValueError(
            f"`start_from` is {folder}, whose {found[0]} codes and clips of {found[1]} are not the {num_codes} codes and "
            f"clips of {latent_shape} of the tokenizer."
        )
    return CaptionedVideoDecoder(
        T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=torch.float32), transformer
    )


@dataclass
class VideoDataset:
    """Codes (n, N) of all clips, in the order of ``clips.clips``, and the caption tokenizer."""

    clips: ClipSet
    codes: Tensor
    captioner: PreTrainedTokenizerFast
    num_codes: int
    shape: tuple[int, int, int]

    def indices(self, config: VideoARConfig, step: int) -> list[int]:
        """The training clips of a step: passes over the set, each in a random order of its own."""
        count = len(self.clips.trained)
        places = range(step * config.batch_size, (step + 1) * config.batch_size)
        orders = {
            e: torch.randperm(count, generator=step_generator(config.seed, -1 - e))
            for e in {p // count for p in places}
        }
        return [int(self.clips.trained[orders[p // count][p % count]]) for p in places]

    def batch(self, config: VideoARConfig, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Caption tokens and mask, dropped captions, corrupted inputs and targets: a function of seed and step alone."""
        picks = self.indices(config, step)
        rng = random.Random(config.seed * 1_000_003 + step)
        texts = [self.clips.caption(clip, rng) for clip in picks]
        null = torch.tensor([rng.random() < config.dropped_captions for _ in picks])
        tokens, mask = tokenize(self.captioner, texts, config.context_length)
        targets = self.codes[picks]
        _, rows, columns = self.shape
        generator = step_generator(config.seed, step)
        inputs = corrupt(targets, columns, self.num_codes, config.corruption, generator, frame_length=rows * columns)
        tokens, mask, null, inputs, targets = (t.to(config.device) for t in (tokens, mask, null, inputs, targets))
        return tokens, mask, null, inputs, targets


def load_dataset(config: VideoARConfig, tokenizer: DiscreteVideoTokenizer) -> VideoDataset:
    """Every clip as codes of ``tokenizer``; they are kept in ``config.output`` for the next time."""
    clips = load_clips(clip_config(config, tokenizer))
    cache = config.output / "codes.safetensors"
    if not cache.is_file():
        parts = np.array_split(np.arange(len(clips.clips)), max(1, len(clips.clips) // 32))
        codes = torch.cat([tokenizer.encode(to_videos(clips.render(part))).flatten(1).cpu() for part in parts])
        config.output.mkdir(parents=True, exist_ok=True)
        save_file({"codes": codes}, cache.with_suffix(".tmp"))
        cache.with_suffix(".tmp").replace(cache)
    if config.start_from is not None:
        captioner = PreTrainedTokenizerFast.from_pretrained(config.start_from / "tokenizer")
    else:
        captioner = train_bpe(all_captions(clips.config.names), config.text_vocab_size, config.context_length)
    side = clips.config.frame_size // tokenizer.config.spatial_compression
    shape = tokenizer.latent_frames(clips.config.num_frames), side, side
    return VideoDataset(clips, load_file(cache)["codes"], captioner, tokenizer.num_codes, shape)


def clip_config(config: VideoARConfig, tokenizer: DiscreteVideoTokenizer) -> ClipConfig:
    """The clips that the tokenizer learnt, too."""
    return ClipConfig(data=config.data, num_frames=tokenizer.config.chunk_frames)


def train(config: VideoARConfig) -> Path:
    """Train the text encoder and the decoder; save them, their tokenizer and a report in ``config.output``.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
        FileNotFoundError: If the emoji archives are missing and cannot be fetched.
    """
    torch.manual_seed(config.seed)
    tokenizer = DiscreteVideoTokenizer.from_pretrained(config.tokenizer, torch_dtype=torch.float32).eval()
    dataset = load_dataset(config, tokenizer)
    model = build(config, tokenizer, dataset.clips.config).to(config.device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        tokens, mask, null, inputs, targets = dataset.batch(config, step)
        with config.autocast:
            logits = model(tokens, mask, null, inputs)
        wanted = targets[:, -logits.shape[1] :]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss = loss + _LOG_PARTITION_WEIGHT * logits.logsumexp(dim=-1).square().mean()
        with torch.no_grad():
            accuracy = (logits.argmax(dim=-1) == wanted).float().mean().item()
        return loss, {"accuracy": accuracy}

    seconds = fit(model, loss_of, config)
    report = {"minutes": seconds / 60, "clips": len(dataset.clips.trained), **evaluate(model.eval(), dataset, config)}
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("video decoder: %s", report)
    model.transformer.save_pretrained(config.output / "transformer")
    model.text_encoder.save_pretrained(config.output / "text_encoder")
    dataset.captioner.save_pretrained(config.output / "tokenizer")
    return config.output


@torch.no_grad()
def evaluate(model: CaptionedVideoDecoder, dataset: VideoDataset, config: VideoARConfig) -> dict[str, float]:
    """How well clips that training never saw are known under their documented captions.

    ``loss`` (nats), ``accuracy`` and ``entropy_bits`` per code are with a clean context. ``copied_frame_accuracy`` is the
    accuracy where every frame is replaced by the one before it, as a Jacobi window's first guess does.
    """
    chosen = dataset.clips.held_out if len(dataset.clips.held_out) else dataset.clips.trained
    totals, seen = dict.fromkeys(_MEASURES, 0.0), 0
    frame = frame_length(model.transformer)
    for start in range(0, min(len(chosen), 128), 16):
        picks = chosen[start : start + 16]
        codes = dataset.codes[picks].to(config.device)
        texts = [dataset.clips.plain_caption(clip) for clip in picks]
        tokens, mask = (t.to(config.device) for t in tokenize(dataset.captioner, texts, config.context_length))
        null = torch.zeros(len(picks), dtype=torch.bool, device=config.device)
        logits = model(tokens, mask, null, codes).log_softmax(dim=-1)
        guessed = torch.cat([codes[:, :frame], codes[:, :-frame]], dim=1)
        wanted = codes[:, frame:]
        # only the first generated frame tells something here: the guesses behind it are two frames late
        first = model(tokens, mask, null, guessed)[:, :frame].argmax(dim=-1) == wanted[:, :frame]
        totals["loss"] -= logits.gather(-1, wanted[:, :, None]).sum().item()
        totals["accuracy"] += (logits.argmax(dim=-1) == wanted).sum().item()
        totals["entropy_bits"] -= (logits.exp() * logits).sum().item() / math.log(2)
        totals["copied_frame_accuracy"] += first.float().mean().item() * wanted.numel()
        seen += wanted.numel()
    return {name: total / seen for name, total in totals.items()}


_MEASURES = ("loss", "accuracy", "entropy_bits", "copied_frame_accuracy")


def saved_config(output: Path, steps: int | None = None) -> VideoARConfig:
    """The settings of the running or finished training in ``output``; ``steps`` if that was its limit."""
    settings = read_settings(output)
    settings["corruption"] = Corruption(**settings["corruption"])
    return VideoARConfig(output=output, steps=steps, minutes=1, **settings)


def load_checkpoint(config: VideoARConfig) -> tuple[CaptionedVideoDecoder, VideoDataset, dict[str, float]]:
    """The averaged model of the running or finished training in ``config.output``, its data, steps and minutes."""
    tokenizer = DiscreteVideoTokenizer.from_pretrained(config.tokenizer, torch_dtype=torch.float32).eval()
    dataset = load_dataset(config, tokenizer)
    model = build(config, tokenizer, dataset.clips.config)
    progress = restore_average(model, config.output)
    return model.eval(), dataset, progress
