"""Vision-language models behind one interface: one file a kind of prompt, one line a family in this table."""

from mmspec.core.registry import Registry

_PLAIN = "mmspec.vlm.adapters.base:VisionLanguageAdapter"
_ROTARY = "mmspec.vlm.adapters.rotary:RotaryGridAdapter"

#: by the ``model_type`` of transformers
ADAPTERS = Registry(
    "vision-language model",
    {
        "glm_ocr": "mmspec.vlm.adapters.rotary:FramedGridAdapter",
        "got_ocr2": _PLAIN,
        "idefics3": _PLAIN,
        "internvl": _PLAIN,
        "llava": _PLAIN,
        "llava_next": _PLAIN,
        "llava_onevision": _PLAIN,
        "paligemma": "mmspec.vlm.adapters.paligemma:PaliGemmaAdapter",
        "qwen2_5_vl": _ROTARY,
        "qwen2_vl": _ROTARY,
        "qwen3_vl": _ROTARY,
        "smolvlm": _PLAIN,
    },
)
