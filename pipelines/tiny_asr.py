"""The embedded recogniser: CTC conformer, projector and a small language model, saved part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import GraniteSpeech5ForCTC, LlamaForCausalLM, PreTrainedTokenizerFast

from mmspec.acceptance.base import Acceptance
from mmspec.drafters.base import Drafter
from mmspec.pipelines.base import SpecPipeline
from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from mmspec.speech.adapters.tiny import TinyAsrAdapter
from mmspec.speech.log_mel import LogMelFeatureExtractor
from mmspec.speech.tiny_asr import CTC_VOCABULARY, AudioProjector, TinyAsrModel


class TinyASRPipeline(SpeechRecognitionPipeline):
    """Transcribe recordings with the embedded recogniser, ``mmspec/tiny-asr``.

    Args:
        encoder: CTC conformer.
        projector: Encoder states to embeddings of the decoder.
        decoder: Language model.
        tokenizer: Its text.
        feature_extractor: Audio to features of the encoder.
        drafter, acceptance, presets: As for :class:`SpeechRecognitionPipeline`.
        ctc_vocabulary: Character of each CTC label; label 0 is the blank. ``None`` takes the letters.
        max_seconds: Longest recording that it hears in one piece.

    Raises:
        ValueError: If the parts do not fit one another.
    """

    model_cpu_offload_seq = "encoder->projector->decoder"

    def __init__(
        self,
        encoder: GraniteSpeech5ForCTC,
        projector: AudioProjector,
        decoder: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        feature_extractor: LogMelFeatureExtractor,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        presets: Mapping[str, Sequence[float]] | None = None,
        ctc_vocabulary: Sequence[str] | None = None,
        max_seconds: float = 16.0,
    ) -> None:
        SpecPipeline.__init__(self)
        self.register_modules(
            encoder=encoder, projector=projector, decoder=decoder, tokenizer=tokenizer,
            feature_extractor=feature_extractor, drafter=drafter, acceptance=acceptance,
        )  # fmt: skip
        labels = list(ctc_vocabulary or CTC_VOCABULARY)
        self.register_to_config(presets=presets, ctc_vocabulary=labels, max_seconds=max_seconds)
        self._check_presets(presets)
        _ = self.adapter

    @property
    def adapter(self) -> TinyAsrAdapter:
        parts = (self.encoder, self.projector, self.decoder, self.feature_extractor)
        made: TinyAsrAdapter | None = self.__dict__.get("_adapter")
        if made is None or any(a is not b for a, b in zip(self.__dict__["_parts"], parts, strict=True)):
            model = TinyAsrModel(*parts, ctc_vocabulary=tuple(self.config.ctc_vocabulary))
            made = TinyAsrAdapter(model, self.tokenizer, self.config.max_seconds)
            self.__dict__["_adapter"], self.__dict__["_parts"] = made, parts
        return made
