"""Recognisers behind one interface: one file a family, one line a family in this table."""

from mmspec.core.registry import Registry

#: by the ``model_type`` of transformers
ADAPTERS = Registry(
    "speech model",
    {
        "granite_speech": "mmspec.speech.adapters.granite:GraniteSpeechAdapter",
        "granite_speech_plus": "mmspec.speech.adapters.granite:GraniteSpeechAdapter",
        "qwen3_asr": "mmspec.speech.adapters.qwen3_asr:Qwen3ASRAdapter",
        "voxtral": "mmspec.speech.adapters.voxtral:VoxtralAdapter",
        "whisper": "mmspec.speech.adapters.whisper:WhisperAdapter",
    },
)
