"""What the pipeline needs of a recogniser, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.runner.runner import DecoderModel
from mmspec.speech.ctc import Posterior
from mmspec.speech.text import TextCodec
from mmspec.speech.vocabulary import CTCVocabulary

TASKS = ("ask", "transcribe", "translate")


@dataclass(frozen=True)
class SpeechTask:
    """What to do with a recording.

    Args:
        name: ``transcribe``, ``translate`` or ``ask``.
        prompt: Instruction instead of the family's own.
        language: Spoken language, as a code (``en``) or name, where the family takes one.
        punctuation: Ask for punctuation and capitals where the family has a prompt for it.

    Raises:
        ValueError: For an unknown task, or a question without a prompt.
    """

    name: str = "transcribe"
    prompt: str | None = None
    language: str | None = None
    punctuation: bool = False

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ValueError(f"Unknown `task` {self.name!r}; choose one of {', '.join(TASKS)}.")
        if self.name == "ask" and not self.prompt:
            raise ValueError("`task` 'ask' needs a `prompt`, the question.")


@dataclass(frozen=True)
class EncodedClip:
    """One clip after the encoder.

    Attributes:
        samples, task: What it was made from, for a draft model that hears for itself.
        prompt: What the decoder reads: prompt embeddings (P, D), or for encoder-decoders the encoder states.
        posterior: What the family's own CTC head says, if it has one.
        tokens: Forced first tokens of an encoder-decoder.
    """

    samples: Tensor
    task: SpeechTask
    prompt: Tensor
    posterior: Posterior | None = None
    tokens: tuple[int, ...] = ()


class SpeechAdapter(ABC):
    """A recogniser: clips to prompts, prompts to a decoder model.

    Attributes:
        network: The model that a decoding session runs.
        codec: Its text.
        sampling_rate: Samples a second of its input.
        max_seconds: Longest clip that it hears in one piece.
        stop_tokens: Tokens that end a transcript.
        max_positions: Tokens of prompt and transcript together.
        vocab_size: Tokens of the verifier.
        ctc: Labels of its own CTC head; ``None`` without one.
        punctuates: Whether it writes punctuation and capitals without being asked to.
        tokens_per_second: More than any speaker says; bounds transcripts where no CTC hypothesis does.
    """

    network: Any
    codec: TextCodec
    sampling_rate: int = 16_000
    max_seconds: float
    stop_tokens: tuple[int, ...]
    max_positions: int
    vocab_size: int
    ctc: CTCVocabulary | None = None
    punctuates: bool = False
    tokens_per_second: float = 12.0

    def check(self, task: SpeechTask) -> None:
        """Raise ValueError if the family cannot do ``task``."""
        if task.name != "transcribe":
            raise ValueError(f"{type(self.network).__name__} only transcribes; got `task` {task.name!r}.")
        if task.prompt is not None or task.language is not None or task.punctuation:
            raise ValueError(f"{type(self.network).__name__} takes no `prompt`, `language` or `punctuation`.")

    @abstractmethod
    def encode(self, samples: Tensor, task: SpeechTask) -> EncodedClip:
        """Run the encoder on one clip (n,), unpadded."""

    @abstractmethod
    def decoder(self, network: Any, clips: Sequence[EncodedClip], device: torch.device) -> DecoderModel:
        """A decoding session of ``network`` over ``clips``."""

    def codec_for(self, task: SpeechTask) -> TextCodec:
        """Text of transcripts under ``task``, which may begin in its own way."""
        return self.codec

    def prompt_length(self, clip: EncodedClip) -> int:
        """Slots that the prompt of ``clip`` takes."""
        return len(clip.prompt)

    @abstractmethod
    def cache_bytes_per_slot(self) -> int:
        """Bytes of keys and values of one slot, all layers."""

    def text(self, tokens: Sequence[int]) -> str:
        """Transcript of the new ``tokens``."""
        return self.codec.decode(tokens).strip()

    def settled_text(self, tokens: Sequence[int]) -> str:
        """The part of :meth:`text` that further tokens cannot change."""
        return self.text(tokens).rstrip("\ufffd").rstrip()


def decoder_bytes_per_slot(config: Any, itemsize: int) -> int:
    """Keys and values of a decoder-only language model of ``config``."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * itemsize


def stop_tokens_of(model: Any) -> tuple[int, ...]:
    """Stop tokens of ``model``: of its generation config, else of its text config."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        stop = getattr(config, "eos_token_id", None)
        if stop is not None:
            return tuple(int(token) for token in (stop if isinstance(stop, (list, tuple)) else [stop]))
    return ()
