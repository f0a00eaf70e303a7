"""Whisper (Radford et al., 2023), an encoder-decoder: drafts follow the forced first tokens, the encoder runs once.

Clips are padded to the window that the model was trained on, so all rows of a batch have encoder states of one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.runner.runner import DecoderModel
from mmspec.speech.adapters.base import EncodedClip, SpeechAdapter, SpeechTask, stop_tokens_of
from mmspec.speech.adapters.whisper_decoder import WhisperDecoderModel
from mmspec.speech.text import TextCodec


class WhisperAdapter(SpeechAdapter):
    """Whisper with its processor.

    Args:
        model: ``WhisperForConditionalGeneration``.
        processor: ``WhisperProcessor``.
    """

    punctuates = True

    def __init__(self, model: Any, processor: Any) -> None:
        self.network, self.processor = model, processor
        self.codec = TextCodec(processor.tokenizer, prefix=" ")
        self.features = processor.feature_extractor
        self.sampling_rate = int(self.features.sampling_rate)
        self.max_seconds = self.features.n_samples / self.sampling_rate
        self.stop_tokens = stop_tokens_of(model)
        self.max_positions, self.vocab_size = model.config.max_target_positions, model.config.vocab_size
        self.generation = model.generation_config

    @property
    def multilingual(self) -> bool:
        return getattr(self.generation, "lang_to_id", None) is not None

    def check(self, task: SpeechTask) -> None:
        if task.name == "ask" or task.prompt is not None:
            raise ValueError("Whisper answers no questions and takes no instruction; leave out `prompt`.")
        if task.punctuation:
            raise ValueError("Whisper punctuates as it was trained; leave out `punctuation`.")
        if not self.multilingual and (task.name == "translate" or task.language is not None):
            raise ValueError("This Whisper model knows one language; leave out `language` and `task`.")
        if task.language is not None:
            self._language_token(task.language)

    def encode(self, samples: Tensor, task: SpeechTask) -> EncodedClip:
        states = self._states(samples)
        return EncodedClip(samples, task, states, tokens=self._forced(states, task))

    def _states(self, samples: Tensor) -> Tensor:
        features = self.features(samples.numpy(), sampling_rate=self.sampling_rate, return_tensors="pt")
        weight = next(self.network.parameters())
        inputs = features["input_features"].to(weight.device, weight.dtype)
        states: Tensor = self.network.model.encoder(inputs).last_hidden_state[0]
        return states

    def _forced(self, states: Tensor, task: SpeechTask) -> tuple[int, ...]:
        """First tokens of the decoder: start, language, task, and that timestamps are not wanted."""
        start = self.network.config.decoder_start_token_id
        tokens = [start if start is not None else self.generation.decoder_start_token_id]
        if self.multilingual:
            language = self._detect(states) if task.language is None else self._language_token(task.language)
            tokens += [language, self.generation.task_to_id[task.name]]
        if getattr(self.generation, "no_timestamps_token_id", None) is not None:
            tokens.append(self.generation.no_timestamps_token_id)
        return tuple(int(token) for token in tokens)

    def _language_token(self, language: str) -> int:
        known: dict[str, int] = self.generation.lang_to_id
        token = known.get(language) or known.get(f"<|{language.lower()}|>")
        if token is None:
            raise ValueError(f"Unknown `language` {language!r}; choose one of {', '.join(known)}.")
        return token

    def _detect(self, states: Tensor) -> int:
        """The most likely language token behind the start token."""
        start = torch.tensor([[self.network.config.decoder_start_token_id]], device=states.device)
        logits = self.network(encoder_outputs=(states[None],), decoder_input_ids=start).logits[0, -1]
        tokens = torch.tensor(sorted(self.generation.lang_to_id.values()), device=logits.device)
        return int(tokens[logits[tokens].argmax()])

    def decoder(self, network: Any, clips: Sequence[EncodedClip], device: torch.device) -> DecoderModel:
        states = [clip.prompt for clip in clips]
        if network is not self.network:  # a draft model hears for itself
            other = type(self)(network, self.processor)
            states = [other._states(clip.samples) for clip in clips]
        return WhisperDecoderModel(network, torch.stack(states), [clip.tokens for clip in clips], device)

    def prompt_length(self, clip: EncodedClip) -> int:
        return len(clip.tokens)

    def cache_bytes_per_slot(self) -> int:
        config = self.network.config
        return 2 * config.decoder_layers * config.d_model * self.network.dtype.itemsize
