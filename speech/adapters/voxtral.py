"""Voxtral (Liu et al., 2025): Whisper encoder in windows of 30 seconds, projector, Llama. It has no CTC head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.speech.adapters.audio_llm import AudioLLMAdapter
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.ctc import Posterior

_SPECIAL = ("[INST]", "[/INST]", "[BEGIN_AUDIO]", "[TRANSCRIBE]")


class VoxtralAdapter(AudioLLMAdapter):
    """Voxtral with its processor; the prompt is laid out as its transcription and instruction requests are."""

    punctuates = True

    def __init__(self, model: Any, processor: Any, max_seconds: float = 30.0) -> None:
        super().__init__(model, processor, max_seconds)
        tokenizer = processor.tokenizer
        self.special = {name: tokenizer.convert_tokens_to_ids(name) for name in _SPECIAL}
        unknown = {None, getattr(tokenizer, "unk_token_id", None)}
        if missing := [name for name, token in self.special.items() if token in unknown]:
            raise ValueError(f"The tokenizer has no {', '.join(missing)}; it is not that of a Voxtral model.")

    def check(self, task: SpeechTask) -> None:
        if task.name == "translate" and task.prompt is None:
            raise ValueError("Voxtral translates as its `prompt` asks; give one with `task` 'translate'.")
        if task.punctuation:
            raise ValueError("Voxtral punctuates as it was trained; leave out `punctuation`.")

    def hear(self, samples: Tensor, task: SpeechTask) -> tuple[Tensor, Tensor, Posterior | None]:
        window = self.features.n_samples
        features = self.features(
            samples.numpy(), sampling_rate=self.sampling_rate, padding=True, truncation=False,
            pad_to_multiple_of=window, return_tensors="pt",
        )["input_features"]  # fmt: skip
        frames = self.features.nb_max_frames
        windows = features.reshape(features.shape[1], -1, frames).transpose(0, 1)  # (windows, mels, frames)
        audio = self.network.get_audio_features(self.place(windows), return_dict=True).pooler_output
        return torch.tensor(self._prompt(len(audio), task)), audio, None

    def _prompt(self, num_audio: int, task: SpeechTask) -> list[int]:
        tokenizer, special = self.processor.tokenizer, self.special
        start = [special["[INST]"], special["[BEGIN_AUDIO]"], *[self.network.config.audio_token_id] * num_audio]
        if getattr(tokenizer, "bos_token_id", None) is not None:
            start.insert(0, tokenizer.bos_token_id)
        if task.prompt is not None:
            return [*start, *self.codec.encode(task.prompt), special["[/INST]"]]
        language = [] if task.language is None else self.codec.encode(f"lang:{task.language}")
        return [*start, special["[/INST]"], *language, special["[TRANSCRIBE]"]]
