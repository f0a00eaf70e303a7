"""What recognisers made of an encoder, a projector and a language model share: audio embeddings in the prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.models.embedded_prompt import EmbeddedPromptModel
from mmspec.models.hf import check_rollback
from mmspec.runner.runner import DecoderModel
from mmspec.speech.adapters.base import EncodedClip, SpeechAdapter, SpeechTask, decoder_bytes_per_slot, stop_tokens_of
from mmspec.speech.ctc import Posterior
from mmspec.speech.text import TextCodec


class AudioLLMAdapter(SpeechAdapter):
    """An audio language model of transformers with its processor.

    Args:
        model: The network.
        processor: Its processor.
        max_seconds: Longest clip that it hears in one piece.

    Raises:
        ValueError: If the model's cache cannot be rolled back.
    """

    divisor = 1.0

    def __init__(self, model: Any, processor: Any, max_seconds: float = 30.0) -> None:
        check_rollback(model)
        self.network, self.processor, self.max_seconds = model, processor, max_seconds
        self.codec = TextCodec(processor.tokenizer)
        self.stop_tokens = stop_tokens_of(model)
        config = model.config.get_text_config()
        self.max_positions, self.vocab_size = config.max_position_embeddings, config.vocab_size
        self.sampling_rate = int(self.features.sampling_rate)

    @property
    def features(self) -> Any:
        """The feature extractor."""
        return self.processor.feature_extractor

    @abstractmethod
    def hear(self, samples: Tensor, task: SpeechTask) -> tuple[Tensor, Tensor, Posterior | None]:
        """Prompt tokens (P,) with audio placeholders, audio embeddings (A, D) for them, and a CTC posterior."""

    def encode(self, samples: Tensor, task: SpeechTask) -> EncodedClip:
        tokens, audio, posterior = self.hear(samples, task)
        is_audio = tokens == self.network.config.audio_token_id
        if int(is_audio.sum()) != len(audio):
            raise ValueError(
                f"The prompt has {int(is_audio.sum())} places for audio, but the clip has {len(audio)} embeddings; "
                "check that processor and model belong together."
            )
        device = audio.device
        embedded = self.network.get_input_embeddings()(tokens.masked_fill(is_audio, 0).to(device))
        prompt = embedded.masked_scatter(is_audio.to(device)[:, None], audio.to(embedded.dtype))
        return EncodedClip(samples, task, prompt, posterior)

    def decoder(self, network: Any, clips: Sequence[EncodedClip], device: torch.device) -> DecoderModel:
        if network is not self.network:  # a draft model of the same family hears for itself
            other = type(self)(network, self.processor, self.max_seconds)
            clips = [other.encode(clip.samples, clip.task) for clip in clips]
        return EmbeddedPromptModel(network, [clip.prompt for clip in clips], device, self.divisor)

    def cache_bytes_per_slot(self) -> int:
        return decoder_bytes_per_slot(self.network.config.get_text_config(), self.network.dtype.itemsize)

    def place(self, value: Tensor) -> Tensor:
        """``value`` where the weights are, in their precision."""
        weight = next(self.network.parameters())
        return value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
