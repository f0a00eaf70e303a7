"""Qwen3-ASR (Qwen team, 2026): Whisper-like encoder, projector, Qwen3. It has no CTC head; drafts come from another model.

The model answers ``language X<asr_text>text``. With a given language that preface is part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmspec.speech.adapters.audio_llm import AudioLLMAdapter
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.ctc import Posterior
from mmspec.speech.text import TextCodec

MARKER = "<asr_text>"
_ASSUMED = "English"  # drafted preface where the model is to find the language; a wrong one costs a round


class Qwen3ASRAdapter(AudioLLMAdapter):
    """Qwen3-ASR with its processor."""

    punctuates = True

    def __init__(self, model: Any, processor: Any, max_seconds: float = 30.0) -> None:
        super().__init__(model, processor, max_seconds)
        self.codec = TextCodec(processor.tokenizer, marker=MARKER)

    def check(self, task: SpeechTask) -> None:
        if task.name != "transcribe":
            raise ValueError(f"Qwen3-ASR only transcribes; got `task` {task.name!r}.")
        if task.punctuation:
            raise ValueError("Qwen3-ASR punctuates as it was trained; leave out `punctuation`.")

    def codec_for(self, task: SpeechTask) -> TextCodec:
        if task.language is None:
            return self.codec.beginning_with(f"language {_ASSUMED}{MARKER}")
        return self.codec.beginning_with("", marker="")

    def hear(self, samples: Tensor, task: SpeechTask) -> tuple[Tensor, Tensor, Posterior | None]:
        inputs = self.processor(
            text=[self._prompt(samples, task)], audio=[samples.numpy()], sampling_rate=self.sampling_rate
        )
        features, mask = self.place(inputs["input_features"]), self.place(inputs["input_features_mask"])
        audio = self.network.get_audio_features(features, mask, return_dict=True).pooler_output
        return inputs["input_ids"][0], audio, None

    def _prompt(self, samples: Tensor, task: SpeechTask) -> str:
        processor = self.processor
        if getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None):
            [text] = processor.apply_transcription_request(
                samples.numpy(), language=task.language, prompt=task.prompt, tokenize=False
            )
            return str(text)
        audio = f"{processor.audio_bos_token}{processor.audio_token}{processor.audio_eos_token}"
        preface = "" if task.language is None else f"language {language_name(task.language)}{MARKER}"
        return (
            f"<|im_start|>system\n{task.prompt or ''}<|im_end|>\n<|im_start|>user\n{audio}<|im_end|>\n"
            f"<|im_start|>assistant\n{preface}"
        )

    def text(self, tokens: Sequence[int]) -> str:
        return self.codec.decode(tokens).rpartition(MARKER)[2].strip()

    def settled_text(self, tokens: Sequence[int]) -> str:
        written = self.codec.decode(tokens)
        preface = written.lower().startswith("language") and MARKER not in written
        return "" if preface else super().settled_text(tokens)


def language_name(language: str) -> str:
    """Name of a language given by code or name, as the model was trained on it.

    Raises:
        ValueError: If the model does not know it.
    """
    from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

    names = {name.lower(): name for name in LANGUAGE_CODE_TO_NAME.values()}
    name = LANGUAGE_CODE_TO_NAME.get(language.lower()) or names.get(language.lower())
    if name is None:
        raise ValueError(f"Unknown `language` {language!r}; choose one of {', '.join(LANGUAGE_CODE_TO_NAME)}.")
    return name
