"""The talker and code predictor of a Qwen3-TTS release as a :class:`mmspec.speech.talker.SpeechTalker`, by their public tensor names.

transformers has no class for them. Query, key and value rows are joined, gate and up rows too. Rotary positions of text and
speech are equal on all three axes of the released talker, so plain rotary positions are the same. What belongs to the
speaker encoder is left out; the speech tokenizer is another file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints.reading import check_tensors, read_tensors
from mmspec.models.loading import read_json
from mmspec.speech.talker import SpeechTalker

_LEFT_OUT = ("speaker_encoder.",)
_SIMPLE = {
    "talker.model.text_embedding.weight": "text_embedding.weight",
    "talker.model.codec_embedding.weight": "codec_embedding.weight",
    "talker.model.norm.weight": "stack.norm.weight",
    "talker.codec_head.weight": "codec_head.weight",
    "talker.code_predictor.model.norm.weight": "code_predictor.stack.norm.weight",
}
_KEPT = (
    (re.compile(r"talker\.text_projection\.(.+)"), r"text_projection.\1"),
    (
        re.compile(r"talker\.code_predictor\.small_to_mtp_projection\.(.+)"),
        r"code_predictor.small_to_mtp_projection.\1",
    ),
    (
        re.compile(r"talker\.code_predictor\.model\.codec_embedding\.(\d+)\.(.+)"),
        r"code_predictor.codec_embedding.\1.\2",
    ),
)
_LAYER = re.compile(r"talker\.(code_predictor\.)?model\.layers\.(\d+)\.(.+)\.weight")
_IN_LAYER = {
    "self_attn.o_proj": "attention.out.weight",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.down_proj": "feed_forward.down.weight",
    "input_layernorm": "attention_norm.weight",
    "post_attention_layernorm": "feed_forward_norm.weight",
}
_JOINED = {
    "attention.qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "feed_forward.gate_up.weight": ("mlp.gate_proj", "mlp.up_proj"),
}
_HEAD = re.compile(r"talker\.code_predictor\.lm_head\.(\d+)\.weight")


def talker_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of :class:`SpeechTalker` from the ``config.json`` of a release.

    Raises:
        ValueError: If an entry is missing.
    """
    try:
        talker = config["talker_config"]
        inner = talker["code_predictor_config"]
        return {
            "text_vocab_size": talker["text_vocab_size"], "text_hidden_size": talker["text_hidden_size"],
            "num_codebooks": talker["num_code_groups"], "num_codes": inner["vocab_size"],
            "hidden_size": talker["hidden_size"], "num_layers": talker["num_hidden_layers"],
            "num_heads": talker["num_attention_heads"], "num_kv_heads": talker["num_key_value_heads"],
            "head_dim": talker["head_dim"], "intermediate_size": talker["intermediate_size"],
            "predictor_hidden_size": inner["hidden_size"], "predictor_layers": inner["num_hidden_layers"],
            "predictor_heads": inner["num_attention_heads"], "predictor_kv_heads": inner["num_key_value_heads"],
            "predictor_head_dim": inner["head_dim"], "predictor_intermediate_size": inner["intermediate_size"],
            "first_vocab_size": talker["vocab_size"], "pad_code": talker["codec_pad_id"],
            "begin_code": talker["codec_bos_id"], "end_code": talker["codec_eos_token_id"],
            "pad_text": config["tts_pad_token_id"], "rope_theta": float(talker["rope_theta"]),
            "norm_eps": talker["rms_norm_eps"],
        }  # fmt: skip
    except KeyError as error:
        raise ValueError(
            f"The configuration has no {error.args[0]!r}, so it is not that of a Qwen3-TTS release."
        ) from error


def rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of :class:`SpeechTalker`; unknown ones keep theirs and are then refused."""
    renamed: dict[str, Tensor] = {}
    layers: dict[str, dict[str, Tensor]] = {}
    heads: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(_LEFT_OUT):
            continue
        if (layer := _LAYER.fullmatch(name)) is not None:
            prefix = f"{'code_predictor.' if layer[1] else ''}stack.layers.{layer[2]}"
            layers.setdefault(prefix, {})[layer[3]] = tensor
        elif (head := _HEAD.fullmatch(name)) is not None:
            heads[int(head[1])] = tensor
        else:
            renamed[_new_name(name)] = tensor
    for prefix, parts in layers.items():
        renamed |= _layer(prefix, parts)
    if heads:
        renamed["code_predictor.lm_head"] = torch.stack([heads[number] for number in sorted(heads)])
    return renamed


def _new_name(name: str) -> str:
    if name in _SIMPLE:
        return _SIMPLE[name]
    for pattern, replacement in _KEPT:
        if pattern.fullmatch(name):
            return pattern.sub(replacement, name)
    return name


def _layer(prefix: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {f"{prefix}.{_IN_LAYER.get(name, name)}": tensor for name, tensor in parts.items()}
    for goal, sources in _JOINED.items():
        if all(source in parts for source in sources):
            made[f"{prefix}.{goal}"] = torch.cat([parts[source] for source in sources])
            for source in sources:
                del made[f"{prefix}.{source}"]
    return made


def load_qwen3_tts(folder: str | Path, dtype: torch.dtype | None = None) -> SpeechTalker:
    """Load the talker of a release.

    Args:
        folder: Holds ``config.json`` and the weights.
        dtype: Type of the weights; by default as stored.

    Raises:
        ValueError: If the configuration is another model's, or a tensor is missing, unexpected or of another shape.
        FileNotFoundError: If there are no weights.
    """
    folder = Path(folder)
    with torch.device("meta"):
        talker = SpeechTalker(**talker_settings(read_json(folder / "config.json")))
    tensors = rename(read_tensors(folder))
    check_tensors(tensors, {name: tuple(t.shape) for name, t in talker.state_dict().items()}, str(folder))
    talker.load_state_dict({name: t if dtype is None else t.to(dtype) for name, t in tensors.items()}, assign=True)
    return talker.eval()


def convert_qwen3_tts(folder: str | Path, output: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write the talker of a release as a folder that ``SpeechTalker.from_pretrained`` loads.

    Raises:
        FileExistsError: If ``output`` holds something.
        ValueError, FileNotFoundError: As :func:`load_qwen3_tts`.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists and is not an empty folder. Name another, or remove it.")
    load_qwen3_tts(folder, dtype).save_pretrained(output)
    return output
