"""mmspec: speculative decoding for autoregressive image, speech, video and vision-language models.

The public names below load on first use, so that ``import mmspec`` costs milliseconds and no torch.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmspec.acceptance.block import BlockAcceptance as BlockAcceptance
    from mmspec.acceptance.budgeted import BudgetedAcceptance as BudgetedAcceptance
    from mmspec.acceptance.cool import CoolAcceptance as CoolAcceptance
    from mmspec.acceptance.coupled import CoupledAcceptance as CoupledAcceptance
    from mmspec.acceptance.fuzzy import FuzzyAcceptance as FuzzyAcceptance
    from mmspec.acceptance.greedy import GreedyAcceptance as GreedyAcceptance
    from mmspec.acceptance.kseq import KSeqAcceptance as KSeqAcceptance
    from mmspec.acceptance.likelihood import LikelihoodAcceptance as LikelihoodAcceptance
    from mmspec.acceptance.match import MatchAcceptance as MatchAcceptance
    from mmspec.acceptance.ratio import RatioAcceptance as RatioAcceptance
    from mmspec.acceptance.recursive import RecursiveAcceptance as RecursiveAcceptance
    from mmspec.acceptance.threshold import ThresholdAcceptance as ThresholdAcceptance
    from mmspec.acceptance.typical import TypicalAcceptance as TypicalAcceptance
    from mmspec.core.sampling import SamplingParams as SamplingParams
    from mmspec.core.stats import DecodeStats as DecodeStats
    from mmspec.core.verify import Guarantee as Guarantee
    from mmspec.drafters.block import BlockDrafter as BlockDrafter
    from mmspec.drafters.eagle3 import Eagle3Drafter as Eagle3Drafter
    from mmspec.drafters.feature import FeatureDrafter as FeatureDrafter
    from mmspec.drafters.jacobi import JacobiDrafter as JacobiDrafter
    from mmspec.drafters.model import ModelDrafter as ModelDrafter
    from mmspec.drafters.mtp import MTPDrafter as MTPDrafter
    from mmspec.drafters.ngram import NGramDrafter as NGramDrafter
    from mmspec.drafters.scaffold import ScaffoldDrafter as ScaffoldDrafter
    from mmspec.drafters.spatial import SpatialDrafter as SpatialDrafter
    from mmspec.image.arpg import ARPGTransformer as ARPGTransformer
    from mmspec.image.grouped import GroupedAcceptance as GroupedAcceptance
    from mmspec.image.lantern import LanternAcceptance as LanternAcceptance
    from mmspec.image.llamagen import LlamaGenTransformer as LlamaGenTransformer
    from mmspec.image.randar import RandARTransformer as RandARTransformer
    from mmspec.image.video_ar import VideoARTransformer as VideoARTransformer
    from mmspec.image.video_tokenizer import DiscreteVideoTokenizer as DiscreteVideoTokenizer
    from mmspec.image.zipar import ZipARSchedule as ZipARSchedule
    from mmspec.pipelines.any_order import AnyOrderPipeline as AnyOrderPipeline
    from mmspec.pipelines.auto import AutoImagePipeline as AutoImagePipeline
    from mmspec.pipelines.auto_speech import AutoSpeechRecognitionPipeline as AutoSpeechRecognitionPipeline
    from mmspec.pipelines.auto_text_to_speech import AutoTextToSpeechPipeline as AutoTextToSpeechPipeline
    from mmspec.pipelines.auto_vision_language import AutoVisionLanguagePipeline as AutoVisionLanguagePipeline
    from mmspec.pipelines.base import SpecPipeline as SpecPipeline
    from mmspec.pipelines.causal_lm import CausalLMPipeline as CausalLMPipeline
    from mmspec.pipelines.chameleon import ChameleonPipeline as ChameleonPipeline
    from mmspec.pipelines.csm import CsmPipeline as CsmPipeline
    from mmspec.pipelines.emu3 import Emu3Pipeline as Emu3Pipeline
    from mmspec.pipelines.janus import JanusPipeline as JanusPipeline
    from mmspec.pipelines.llamagen import LlamaGenPipeline as LlamaGenPipeline
    from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline as SpeechRecognitionPipeline
    from mmspec.pipelines.text_to_speech import TextToSpeechPipeline as TextToSpeechPipeline
    from mmspec.pipelines.tiny_asr import TinyASRPipeline as TinyASRPipeline
    from mmspec.pipelines.video import VideoPipeline as VideoPipeline
    from mmspec.pipelines.vision_language import VisionLanguagePipeline as VisionLanguagePipeline
    from mmspec.speech.codec import SpeechCodec as SpeechCodec
    from mmspec.speech.ctc_drafter import CTCDrafter as CTCDrafter
    from mmspec.speech.log_mel import LogMelFeatureExtractor as LogMelFeatureExtractor
    from mmspec.speech.mask_predictor import MaskPredictor as MaskPredictor
    from mmspec.speech.residual_drafter import ResidualDrafter as ResidualDrafter
    from mmspec.speech.residual_heads import ResidualHeads as ResidualHeads
    from mmspec.speech.talker import SpeechTalker as SpeechTalker
    from mmspec.speech.tiny_asr import AudioProjector as AudioProjector

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.drafters import DRAFTERS
from mmspec.schedules import SCHEDULES

__version__ = "0.1.0"

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():  # a source tree: image/, speech/, ... lie beside this package
    __path__.append(str(_checkout))

# The one table of public names; rules, drafters and schedules come from their registries. The last three are looked up by
# diffusers when it loads a saved pipeline.
_EXPORTS = {
    **ACCEPTANCE_RULES.exports(),
    **DRAFTERS.exports(),
    **SCHEDULES.exports(),
    "AnyOrderPipeline": "mmspec.pipelines.any_order",
    "ARPGTransformer": "mmspec.image.arpg",
    "AutoImagePipeline": "mmspec.pipelines.auto",
    "AudioProjector": "mmspec.speech.tiny_asr",
    "AutoSpeechRecognitionPipeline": "mmspec.pipelines.auto_speech",
    "AutoTextToSpeechPipeline": "mmspec.pipelines.auto_text_to_speech",
    "AutoVisionLanguagePipeline": "mmspec.pipelines.auto_vision_language",
    "CausalLMPipeline": "mmspec.pipelines.causal_lm",
    "ChameleonPipeline": "mmspec.pipelines.chameleon",
    "CsmPipeline": "mmspec.pipelines.csm",
    "DecodeStats": "mmspec.core.stats",
    "DiscreteVideoTokenizer": "mmspec.image.video_tokenizer",
    "Emu3Pipeline": "mmspec.pipelines.emu3",
    "Guarantee": "mmspec.core.verify",
    "JanusPipeline": "mmspec.pipelines.janus",
    "LlamaGenPipeline": "mmspec.pipelines.llamagen",
    "LlamaGenTransformer": "mmspec.image.llamagen",
    "LogMelFeatureExtractor": "mmspec.speech.log_mel",
    "MaskPredictor": "mmspec.speech.mask_predictor",
    "SamplingParams": "mmspec.core.sampling",
    "SpecPipeline": "mmspec.pipelines.base",
    "SpeechRecognitionPipeline": "mmspec.pipelines.speech_recognition",
    "RandARTransformer": "mmspec.image.randar",
    "ResidualHeads": "mmspec.speech.residual_heads",
    "SpeechCodec": "mmspec.speech.codec",
    "SpeechTalker": "mmspec.speech.talker",
    "TextToSpeechPipeline": "mmspec.pipelines.text_to_speech",
    "TinyASRPipeline": "mmspec.pipelines.tiny_asr",
    "VisionLanguagePipeline": "mmspec.pipelines.vision_language",
    "VideoARTransformer": "mmspec.image.video_ar",
    "VideoPipeline": "mmspec.pipelines.video",
    "ModelMixin": "diffusers",
    "SchedulerMixin": "diffusers",
    "PreTrainedModel": "transformers",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
