"""The embedded speech recogniser: a CTC conformer, a projector, and a small language model that reads its output.

The language model (Touvron et al., 2023, "LLaMA") is prompted with projected states of the encoder and the probabilities of its labels, as in Fathullah
et al., 2024, "Prompting Large Language Models with Speech Recognition Abilities"; the encoder (Gulati et al., 2020,
"Conformer") has a CTC head (Graves et al., 2006) whose text drafts for the language model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from transformers import (
    GraniteSpeech5CTCConfig,
    GraniteSpeech5EncoderConfig,
    GraniteSpeech5ForCTC,
    LlamaConfig,
    LlamaForCausalLM,
)

from mmspec.speech.log_mel import LogMelFeatureExtractor

CTC_VOCABULARY = ("<blank>", " ", "'", *(chr(97 + i) for i in range(26)))
"""Label to character of the CTC head; label 0 is the blank."""

CTC_VOCABULARY_FILE = "ctc_vocabulary.json"
PARTS = ("encoder", "projector", "decoder")


class AudioProjector(ModelMixin, ConfigMixin):
    """Joins consecutive states and maps them, with those before and after, to the width of the language model.

    Args:
        input_size: Width D of the states: that of the encoder and the number of its labels.
        output_size: Width of the language model.
        stack: Frames joined.
        hidden_size: Width between the two layers.
    """

    config_name = "config.json"

    @register_to_config
    def __init__(self, input_size: int, output_size: int, stack: int = 3, hidden_size: int = 512) -> None:
        super().__init__()
        self.up = nn.Linear(3 * input_size * stack, hidden_size)
        self.down = nn.Linear(hidden_size, output_size)

    def forward(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Project states.

        Args:
            hidden: States (B, T, D).
            lengths: Valid frames of each row (B,).

        Returns:
            Audio embeddings (B, ceil(T / stack), output_size) and how many of each row are valid (B,).
        """
        stack = self.config.stack
        valid = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # (B, T)
        # a last group that is not full is filled with zeros, whatever the row's neighbours are
        kept = F.pad(hidden * valid[:, :, None], (0, 0, 0, -hidden.shape[1] % stack))
        grouped = kept.reshape(len(hidden), -1, stack * hidden.shape[2])
        around = F.pad(grouped, (0, 0, 1, 1))
        wide = torch.cat((around[:, :-2], grouped, around[:, 2:]), dim=-1)
        return self.down(F.gelu(self.up(wide))), (lengths + stack - 1) // stack


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Sizes of the conformer; attention stays within blocks of ``context`` frames: 20 ms in the first layer, whose
    output has half the rate, 40 ms above."""

    hidden_size: int = 192
    layers: int = 6
    heads: int = 4
    feed_forward: int = 512
    context: int = 50
    kernel: int = 9


class TinyAsrModel(nn.Module):
    """The three networks with the features and labels that belong to them.

    Args:
        encoder: CTC model whose label 0 is the blank.
        projector, decoder: See above; the decoder's config holds ``bos_token_id``, ``eos_token_id`` and
            ``text_token_id``, the token between audio and text.
        feature_extractor: Makes the encoder's input.
        ctc_vocabulary: Label to text; label 0 stands for the blank.

    Raises:
        ValueError: If sizes do not fit one another, or the prompt's tokens are not configured.
    """

    def __init__(
        self,
        encoder: GraniteSpeech5ForCTC,
        projector: AudioProjector,
        decoder: LlamaForCausalLM,
        feature_extractor: LogMelFeatureExtractor,
        ctc_vocabulary: tuple[str, ...] = CTC_VOCABULARY,
    ) -> None:
        super().__init__()
        sizes = {
            "features": (feature_extractor.feature_size, encoder.encoder.input_linear.in_features),
            "CTC labels": (len(ctc_vocabulary), encoder.config.vocab_size),
            "states": (
                encoder.config.encoder_config.hidden_size + encoder.config.vocab_size,
                projector.config.input_size,
            ),
            "audio embeddings": (projector.config.output_size, decoder.config.hidden_size),
        }
        for name, (first, second) in sizes.items():
            if first != second:
                raise ValueError(f"The parts do not fit: {name} of width {first} meet a width of {second}.")
        if encoder.config.pad_token_id != 0:
            raise ValueError(f"The encoder's blank is {encoder.config.pad_token_id}; it must be label 0.")
        for name in ("bos_token_id", "eos_token_id", "text_token_id"):
            if not isinstance(getattr(decoder.config, name, None), int):
                raise ValueError(f"The decoder's config has no `{name}`, which the prompt needs.")
        self.encoder, self.projector, self.decoder = encoder, projector, decoder
        self.feature_extractor, self.ctc_vocabulary = feature_extractor, tuple(ctc_vocabulary)

    @classmethod
    def tiny(cls, seed: int = 0, vocab_size: int = 64) -> TinyAsrModel:
        """A randomly initialised model of a few thousand parameters, for tests."""
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):  # constructors draw from the global state, which is the caller's
            extractor = LogMelFeatureExtractor(num_mels=16)
            sizes = EncoderSizes(hidden_size=32, layers=2, heads=4, feed_forward=48, context=25, kernel=5)
            encoder = build_encoder(extractor.feature_size, sizes)
            decoder = build_decoder(vocab_size, hidden_size=32, layers=2, heads=4, feed_forward=48)
            projector = AudioProjector(32 + len(CTC_VOCABULARY), 32, stack=3, hidden_size=48)
        model = cls(encoder, projector, decoder, extractor)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1:  # large in the decoder, so that outputs differ clearly
                    scale = 0.3 if name.startswith("decoder") else 0.15
                    weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        return model.eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, dtype: torch.dtype = torch.float32) -> TinyAsrModel:
        """Load all parts from a folder.

        Raises:
            ValueError: If a tensor is missing or superfluous.
        """
        from mmspec.models.loading import check_weights

        folder = Path(folder)
        classes = (GraniteSpeech5ForCTC, AudioProjector, LlamaForCausalLM)
        parts = {}
        for name, part in zip(PARTS, classes, strict=True):
            check_weights(folder / name, part)
            parts[name] = part.from_pretrained(folder / name, dtype=dtype).eval()
        labels = tuple(json.loads((folder / CTC_VOCABULARY_FILE).read_text()))
        features = LogMelFeatureExtractor.from_pretrained(folder / "feature_extractor")
        return cls(**parts, feature_extractor=features, ctc_vocabulary=labels).eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write all parts to a folder; the tokenizer is not one of them."""
        folder = Path(folder)
        for name in PARTS:
            getattr(self, name).save_pretrained(folder / name)
        self.feature_extractor.save_pretrained(folder / "feature_extractor")
        (folder / CTC_VOCABULARY_FILE).write_text(json.dumps(list(self.ctc_vocabulary)) + "\n")

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode a batch; each row is what it would be alone.

        Args:
            features: Stacked log-mel features (B, T, M).
            lengths: Valid features of each row (B,), at least 2.

        Returns:
            States (B, T', D), CTC log-probabilities (B, T', C) and valid frames of each row (B,). States are the
            encoder's last layer with the CTC probabilities appended, which lets the language model read them.
        """
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None].to(features.device)
        output = self.encoder.encoder(features, attention_mask=mask)
        hidden = output.last_hidden_state
        log_probs = self.encoder.ctc_head(hidden).float().log_softmax(dim=-1)
        states = torch.cat((hidden, log_probs.exp().to(hidden.dtype)), dim=-1)
        return states, log_probs, output.attention_mask.sum(dim=1)

    def prompt_embeddings(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's prompt ``[bos] audio [text]``, left-padded.

        Args:
            hidden: States (B, T', D).
            lengths: Valid frames of each row (B,).

        Returns:
            Embeddings (B, P, D_llm) and mask (B, P), True where a row's prompt is; its last column is always True.
        """
        audio, counts = self.projector(hidden, lengths)
        embed, config = self.decoder.get_input_embeddings(), self.decoder.config
        edges = embed(torch.tensor([config.bos_token_id, config.text_token_id], device=hidden.device)).to(audio.dtype)
        longest = int(counts.max()) + 2
        rows = [
            torch.cat((edges[:1], row[:count], edges[1:])) for row, count in zip(audio, counts.tolist(), strict=True)
        ]
        padded = torch.stack([F.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
        mask = torch.arange(longest, device=hidden.device) >= longest - 2 - counts[:, None]
        return padded, mask

    def ctc_text(self, labels: Tensor) -> str:
        """Text of one row of best labels (T',): equal neighbours merged, blanks dropped, spaces trimmed."""
        kept = torch.unique_consecutive(labels).tolist()
        return " ".join("".join(self.ctc_vocabulary[label] for label in kept if label).split())


def build_encoder(feature_size: int, sizes: EncoderSizes) -> GraniteSpeech5ForCTC:
    """An untrained CTC conformer for features of ``feature_size`` numbers, a multiple of 4."""
    encoder = GraniteSpeech5EncoderConfig(
        vocab_size=len(CTC_VOCABULARY),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.feed_forward,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        # the class counts four numbers of input a band: for it two frames of statics and deltas, here stacked bands
        num_mel_bins=feature_size // 4,
        context_size=sizes.context,
        max_position_embeddings=sizes.context,
        conv_kernel_size=sizes.kernel,
        conv_expansion_factor=1,
        subsample_layers=[0],
    )
    config = GraniteSpeech5CTCConfig(vocab_size=len(CTC_VOCABULARY), encoder_config=encoder, pad_token_id=0)
    return GraniteSpeech5ForCTC(config)


def build_decoder(
    vocab_size: int, hidden_size: int, layers: int, heads: int, feed_forward: int, initial_range: float = 0.02
) -> LlamaForCausalLM:
    """An untrained language model whose tokens 0 to 3 are padding, begin, end, and start of text."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        initializer_range=initial_range,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.text_token_id = 3
    return LlamaForCausalLM(config)
