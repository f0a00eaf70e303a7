"""The embedded recogniser: CTC conformer, projector and a small Llama, see :mod:`mmspec.speech.tiny_asr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.models.embedded_prompt import EmbeddedPromptModel
from mmspec.runner.runner import DecoderModel
from mmspec.speech.adapters.base import EncodedClip, SpeechAdapter, SpeechTask, decoder_bytes_per_slot, stop_tokens_of
from mmspec.speech.ctc import Posterior
from mmspec.speech.text import TextCodec
from mmspec.speech.tiny_asr import TinyAsrModel
from mmspec.speech.vocabulary import CharacterVocabulary

_SHORTEST = 0.1  # seconds; the encoder halves its frames twice and needs some


class TinyAsrAdapter(SpeechAdapter):
    """The embedded recogniser.

    Args:
        model: Its networks and features.
        tokenizer: Its text.
        max_seconds: Longest clip that it hears in one piece.
    """

    def __init__(self, model: TinyAsrModel, tokenizer: Any, max_seconds: float) -> None:
        self.model, self.network = model, model.decoder
        self.codec = TextCodec(tokenizer)
        self.sampling_rate = model.feature_extractor.config.sample_rate
        self.max_seconds = max_seconds
        self.stop_tokens = stop_tokens_of(model.decoder)
        config = model.decoder.config
        self.max_positions, self.vocab_size = config.max_position_embeddings, config.vocab_size
        self.forbidden = tuple({0, config.bos_token_id, config.text_token_id} - set(self.stop_tokens))
        self.ctc = CharacterVocabulary(["", *model.ctc_vocabulary[1:]], blank=0)

    def encode(self, samples: Tensor, task: SpeechTask) -> EncodedClip:
        least = int(_SHORTEST * self.sampling_rate)
        audible = F.pad(samples, (0, max(0, least - len(samples))))
        features, lengths = self.model.feature_extractor([audible], self.sampling_rate)
        place = self.model.encoder.encoder.input_linear.weight
        hidden, log_probs, frames = self.model.encode(features.to(place.device, place.dtype), lengths.to(place.device))
        prompt, _ = self.model.prompt_embeddings(hidden, frames)
        valid = int(frames[0])
        seconds = len(audible) / self.sampling_rate / max(1, valid)
        posterior = Posterior(log_probs[0, :valid].float().cpu(), blank=0, seconds_per_frame=seconds)
        return EncodedClip(samples, task, prompt[0], posterior)

    def decoder(self, network: Any, clips: Sequence[EncodedClip], device: torch.device) -> DecoderModel:
        if network.config.hidden_size != self.network.config.hidden_size:
            raise ValueError(
                f"A draft decoder of width {network.config.hidden_size} cannot read audio embeddings of width "
                f"{self.network.config.hidden_size}; train it on the same projector."
            )
        return EmbeddedPromptModel(network, [clip.prompt for clip in clips], device, forbidden=self.forbidden)

    def cache_bytes_per_slot(self) -> int:
        return decoder_bytes_per_slot(self.network.config, self.network.dtype.itemsize)
