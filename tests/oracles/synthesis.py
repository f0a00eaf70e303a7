"""Tiny speech-synthesis models of every family with random weights, and the loop over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    EncodecFeatureExtractor,
    MimiConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.csm.configuration_csm import CsmDepthDecoderConfig
from transformers.models.moshi.configuration_moshi import MoshiDepthConfig
from transformers.models.moshi.modeling_moshi import MoshiDepthDecoder
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
    Qwen3OmniMoeTalkerConfig,
    Qwen3OmniMoeTalkerTextConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerForConditionalGeneration

from mmspec.acceptance.coupled import CoupledAcceptance
from mmspec.core.controllers import CostCurve, FixedController
from mmspec.core.drafting import NoDraft
from mmspec.core.loop import SpeculativeDecoder
from mmspec.core.noise import RowNoise
from mmspec.core.sampling import SamplingParams
from mmspec.core.stats import DecodeStats
from mmspec.core.stopping import Stopping
from mmspec.drafters.base import Drafter, DraftSetup
from mmspec.pipelines.csm import CsmPipeline
from mmspec.pipelines.text_to_speech import TextToSpeechPipeline
from mmspec.speech.code_sampling import CodeLaw, CodeSampling
from mmspec.speech.code_target import CodeTarget
from mmspec.speech.codec import SpeechCodec
from mmspec.speech.mask_predictor import MaskPredictor
from mmspec.speech.residual_heads import ResidualHeads
from mmspec.speech.speakable import ALPHABET
from mmspec.speech.talker import SpeechTalker

BOOKS, CODES = 4, 16


def lively(model: Any, std: float = 0.25, seed: int = 0) -> Any:
    """``model`` with weights large enough for codes that change from frame to frame."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
            elif name.endswith("bias"):
                parameter.zero_()  # a layer's own start would come from the global generator
    return model.eval()


def tiny_talker(
    seed: int = 0, books: int = BOOKS, codes: int = CODES, track_blocks: int = 0, frame_stack: int = 1
) -> SpeechTalker:
    model = SpeechTalker(
        text_vocab_size=len(ALPHABET) + 1, text_hidden_size=16, num_codebooks=books, num_codes=codes, hidden_size=32,
        num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=48, predictor_hidden_size=24,
        predictor_layers=2, predictor_heads=2, predictor_kv_heads=2, predictor_head_dim=12,
        predictor_intermediate_size=32, first_vocab_size=codes + 3, pad_code=codes, begin_code=codes + 1,
        end_code=codes + 2, track_blocks=track_blocks, frame_stack=frame_stack,
    )  # fmt: skip
    return lively(model, seed=seed)


def tiny_codec(seed: int = 0) -> SpeechCodec:
    codec = SpeechCodec(
        width=16, inner=24, kernel=3, coarse_blocks=1, fine_blocks=1, num_codebooks=BOOKS, num_codes=CODES, code_dim=8
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    for buffer in (codec.quantizer.codebooks, codec.quantizer.basis):
        buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return lively(codec, 0.2, seed)


def tiny_heads(kind: str, books: int = BOOKS, width: int = 24, input_width: int = 32) -> ResidualHeads:
    heads = ResidualHeads(kind, books, width, input_width, 8)
    return lively(heads, 0.1)


def tiny_mask_predictor(books: int = BOOKS, **settings: Any) -> MaskPredictor:
    return lively(MaskPredictor(books, CODES, 32, 16, 2, 2, 24, **settings))


def tiny_voice(drafter: Drafter | None = None, frame_stack: int = 1, **settings: Any) -> TextToSpeechPipeline:
    talker = tiny_talker(track_blocks=1, frame_stack=frame_stack)
    pipe = TextToSpeechPipeline(talker, tiny_codec(), drafter, **settings)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@dataclass
class Decoded:
    """Tokens of each row, the stats, and the target with its counts."""

    rows: list[list[int]]
    stats: DecodeStats
    target: CodeTarget


@torch.no_grad()
def decode_frames(
    model: Any,
    seeds: list[int],
    frames: int,
    drafter: Drafter | None = None,
    rule: Any = None,
    sampling: CodeSampling | None = None,
    layout: str = "auto",
    end: int | None = None,
) -> Decoded:
    """Run the common loop over a frame model."""
    rule = rule or CoupledAcceptance()
    codes = sampling or CodeSampling(SamplingParams(1.0, 10), SamplingParams(1.0, 5))
    law = CodeLaw(codes.of_books(model.num_codebooks), model.allowed(), codes.repetition_penalty)
    target = CodeTarget(model, law, layout)
    budget = frames * model.num_codebooks
    session: Any = NoDraft()
    controller: Any = FixedController(1)
    if drafter is not None:
        setup = DraftSetup(
            num_rows=len(seeds), vocab_size=target.vocab_size, device=torch.device("cpu"), max_new_tokens=budget,
            needs_law=rule.needs_law, runner=target,
        )  # fmt: skip
        session, controller = drafter.session(setup), drafter.controller(CostCurve())
    decoder = SpeculativeDecoder(
        target, session, rule, controller, RowNoise(torch.tensor(seeds), target.vocab_size), SamplingParams(),
        Stopping(budget, () if end is None else (end,)), DecodeStats(),
    )  # fmt: skip
    *_, last = decoder.steps()
    rows = [tokens[:length] for tokens, length in zip(last.tokens.tolist(), last.lengths, strict=True)]
    return Decoded(rows, decoder.stats, target)


def tiny_csm() -> CsmForConditionalGeneration:
    depth = CsmDepthDecoderConfig(
        num_codebooks=BOOKS, backbone_hidden_size=48, vocab_size=19, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=9,
    )  # fmt: skip
    codec = MimiConfig(
        hidden_size=32, num_filters=4, num_residual_layers=1, upsampling_ratios=[8, 4], num_quantizers=BOOKS,
        num_semantic_quantizers=1, codebook_size=16, codebook_dim=16, vector_quantization_hidden_dimension=16,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, intermediate_size=64, upsample_groups=32,
        head_dim=8, sliding_window=16,
    )  # fmt: skip
    config = CsmConfig(
        num_codebooks=BOOKS, vocab_size=19, text_vocab_size=99, hidden_size=48, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=0, codebook_pad_token_id=18, codebook_eos_token_id=0, bos_token_id=1, audio_token_id=97,
        audio_eos_token_id=98, depth_decoder_config=depth, codec_config=codec,
    )  # fmt: skip
    model = CsmForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(5)
    for name, buffer in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):  # zero at first: all codes would sound alike
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return lively(model)


#: frames of recordings, as the tiny codec makes them
CSM_LENGTHS = {
    "kernel_sizes": [7, 3, 1, 8, 3, 1, 16, 3, 4], "strides": [1, 1, 1, 4, 1, 1, 8, 1, 2], "dilations": [1] * 9,
    "use_causal_conv": True,
}  # fmt: skip
_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{{ bos_token }}[{{ message['role'] }}]{{ part['text'] }}{{ eos_token }}"
    "{% else %}<|AUDIO|><|audio_eos|>{% endif %}{% endfor %}{% endfor %}"
)


def tiny_csm_processor(template: str | None = _TEMPLATE, rate: int = 24_000) -> CsmProcessor:
    """A processor whose tokens are characters."""
    special = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3, "<|AUDIO|>": 97, "<|audio_eos|>": 98}
    characters = {chr(code): place + 4 for place, code in enumerate([*range(32, 64), *range(91, 123)])}
    inner = Tokenizer(models.WordLevel({**special, **characters}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.add_special_tokens(list(special))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )  # fmt: skip
    return CsmProcessor(EncodecFeatureExtractor(sampling_rate=rate), tokenizer, chat_template=template)


def tiny_csm_voice(drafter: Drafter | None = None, **settings: Any) -> CsmPipeline:
    pipe = CsmPipeline(tiny_csm(), tiny_csm_processor(), drafter, **settings)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_omni_talker() -> Qwen3OmniMoeTalkerForConditionalGeneration:
    predictor = Qwen3OmniMoeTalkerCodePredictorConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_code_groups=BOOKS,
    )  # fmt: skip
    text = Qwen3OmniMoeTalkerTextConfig(
        vocab_size=72, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
        shared_expert_intermediate_size=16,
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
        },
    )  # fmt: skip
    config = Qwen3OmniMoeTalkerConfig(
        code_predictor_config=predictor, text_config=text, num_code_groups=BOOKS, thinker_hidden_size=24,
        codec_eos_token_id=70, codec_nothink_id=65, codec_think_bos_id=66, codec_think_eos_id=67, codec_pad_id=68,
        codec_bos_id=69, audio_token_id=60, image_token_id=61, video_token_id=62, vision_start_token_id=63,
        position_id_per_seconds=13, audio_start_token_id=59, speaker_id={"a": 64}, spatial_merge_size=2,
        accept_hidden_layer=1,
    )  # fmt: skip
    return lively(Qwen3OmniMoeTalkerForConditionalGeneration(config))


def tiny_moshi_depth() -> MoshiDepthDecoder:
    config = MoshiDepthConfig(
        vocab_size=20, hidden_size=32, input_size=48, num_hidden_layers=2, num_attention_heads=4, audio_vocab_size=18,
        max_position_embeddings=9, ffn_dim=64, num_codebooks=BOOKS,
    )  # fmt: skip
    return lively(MoshiDepthDecoder(config), 0.12)


def states_like(rows: int, frames: int, width: int, seed: int = 3) -> Tensor:
    """States (rows, frames, width) of a talker that is not run."""
    return torch.randn(rows, frames, width, generator=torch.Generator().manual_seed(seed))
