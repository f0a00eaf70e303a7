"""Granite Speech and Granite Speech Plus (IBM, 2025, "Granite-speech"): conformer with a CTC head, Q-Former, Granite.

The encoder takes no mask, so padding would leak through its convolutions; clips are encoded alone. Its CTC head is
the layer ``out`` that also conditions the middle of the encoder. The Plus variant hands the projector several layers;
the last ``hidden_dim`` channels are those of the last one, which the head reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.speech.adapters.audio_llm import AudioLLMAdapter
from mmspec.speech.adapters.base import SpeechTask
from mmspec.speech.ctc import Posterior
from mmspec.speech.vocabulary import CharacterVocabulary

RAW_PROMPT = "can you transcribe the speech into a written format?"
PUNCTUATED_PROMPT = "transcribe the speech with proper punctuation and capitalization."
TRANSLATE_PROMPT = "translate the speech to {language}."

_KATAKANA = 0x30A1  # the released heads have 92 labels behind the characters 1..255, the length of this block
_SECONDS_PER_FRAME = 0.02


def grapheme_labels(count: int) -> list[str] | None:
    """Characters of the grapheme head with ``count`` labels, ``None`` for a head of another kind."""
    if count not in (256, 348):
        return None
    characters = [chr(code) if chr(code).isprintable() else "" for code in range(256)]
    return [*characters, *(chr(_KATAKANA + i) for i in range(count - 256))]


class GraniteSpeechAdapter(AudioLLMAdapter):
    """Granite Speech with its own CTC head.

    Args:
        model: ``GraniteSpeechForConditionalGeneration`` or ``GraniteSpeechPlusForConditionalGeneration``.
        processor: ``GraniteSpeechProcessor``.
        max_seconds: Longest clip that it hears in one piece.
        ctc_labels: Character of each label of the CTC head, for heads that are not the released grapheme ones.
    """

    def __init__(
        self, model: Any, processor: Any, max_seconds: float = 30.0, ctc_labels: Sequence[str] | None = None
    ) -> None:
        super().__init__(model, processor, max_seconds)
        labels = ctc_labels or grapheme_labels(model.config.encoder_config.output_dim)
        self.ctc = None if labels is None else CharacterVocabulary(["", *labels[1:]], blank=0)
        self.divisor = missing_divisor(model)
        if getattr(model, "_hf_peft_config_loaded", False):
            # its own `generate` turns the adapter off whenever it gets no audio, and leaves it so
            model.enable_adapters()

    @property
    def features(self) -> Any:
        return self.processor.audio_processor

    def check(self, task: SpeechTask) -> None:
        if task.name == "translate" and task.language is None and task.prompt is None:
            raise ValueError("`task` 'translate' needs `language`, what to translate to, or a `prompt`.")

    def instruction(self, task: SpeechTask) -> str:
        """What the user asks for."""
        if task.prompt is not None:
            return task.prompt
        if task.name == "translate":
            return TRANSLATE_PROMPT.format(language=task.language)
        return PUNCTUATED_PROMPT if task.punctuation else RAW_PROMPT

    def hear(self, samples: Tensor, task: SpeechTask) -> tuple[Tensor, Tensor, Posterior | None]:
        prompt = self._prompt(self.processor.audio_token + self.instruction(task))
        inputs = self.processor(text=prompt, audio=[samples], return_tensors="pt")
        speech = self.network.model
        hidden = speech.encoder(self.place(inputs["input_features"])).last_hidden_state
        audio = speech.projector(hidden)[0][inputs["input_features_mask"][0].to(hidden.device)]
        return inputs["input_ids"][0], audio, self._posterior(hidden)

    def _prompt(self, request: str) -> str:
        tokenizer = self.processor.tokenizer
        if getattr(tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": request}]
            text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            return text
        return f"USER: {request}\n ASSISTANT:"

    def _posterior(self, hidden: Tensor) -> Posterior | None:
        if self.ctc is None:
            return None
        encoder = self.network.model.encoder
        last = hidden[..., -encoder.config.hidden_dim :]
        log_probs = encoder.out(last)[0].float().log_softmax(-1).cpu()
        return Posterior(log_probs, blank=0, seconds_per_frame=_SECONDS_PER_FRAME)


@torch.no_grad()
def missing_divisor(model: Any) -> float:
    """What the logits of ``model`` must be divided by: ``logits_scaling`` where its forward leaves that out.

    Granite's own head divides; the speech model of transformers 5.24 does not, which turns probabilities into those
    of another temperature. The model is asked, so that this holds with either.

    Raises:
        ValueError: If the logits are neither.
    """
    scaling = float(getattr(model.config.get_text_config(), "logits_scaling", 1.0))
    if scaling == 1:
        return 1.0
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    raw = model.lm_head(model.model(input_ids=token).last_hidden_state).float()
    given = model(input_ids=token).logits.float()
    for factor in (1.0, scaling):
        if torch.allclose(given * factor, raw, rtol=1e-2, atol=1e-4):
            return scaling / factor
    raise ValueError(f"{type(model).__name__} scales its logits in a way that mmspec does not know.")
