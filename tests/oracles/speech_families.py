"""Tiny random-weight recognisers of transformers' own classes, with the real processors over tiny tokenizers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Blip2QFormerConfig,
    GraniteConfig,
    GraniteSpeechConfig,
    GraniteSpeechEncoderConfig,
    GraniteSpeechFeatureExtractor,
    GraniteSpeechForConditionalGeneration,
    GraniteSpeechPlusConfig,
    GraniteSpeechPlusEncoderConfig,
    GraniteSpeechPlusForConditionalGeneration,
    GraniteSpeechProcessor,
    LlamaConfig,
    Qwen3ASRConfig,
    Qwen3ASREncoderConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
    Qwen3Config,
    VoxtralConfig,
    VoxtralEncoderConfig,
    VoxtralForConditionalGeneration,
    VoxtralProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

from mmspec.pipelines.speech_recognition import SpeechRecognitionPipeline
from tests.oracles.speech import VOCAB_SIZE, tiny_tokenizer

GRANITE_SPECIAL = ("<|audio|>",)
QWEN_SPECIAL = ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>")
VOXTRAL_SPECIAL = ("[INST]", "[/INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[TRANSCRIBE]")
WHISPER_SPECIAL = (
    "<|startoftranscript|>", "<|en|>", "<|fr|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>",
)  # fmt: skip


def _lively(model: Any, seed: int = 0, std: float = 0.3) -> Any:
    """``model`` with weights large enough for outputs that change from token to token."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and parameter.dim() > 1 and "encoder.embed_positions" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


def _sizes(vocab: int, **more: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": vocab, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return {**sizes, **more}


def tiny_granite(seed: int = 0, plus: bool = False) -> SpeechRecognitionPipeline:
    tokenizer = tiny_tokenizer(GRANITE_SPECIAL)
    audio = tokenizer.convert_tokens_to_ids("<|audio|>")
    text = GraniteConfig(**_sizes(VOCAB_SIZE + 1, max_position_embeddings=512, logits_scaling=8.0))
    encoder_class = GraniteSpeechPlusEncoderConfig if plus else GraniteSpeechEncoderConfig
    extra = {"cat_hidden_layers": [2]} if plus else {}
    encoder = encoder_class(
        input_dim=160, num_layers=4 if plus else 2, hidden_dim=32, feedforward_mult=2, num_heads=4, dim_head=8,
        output_dim=348, context_size=25, max_pos_emb=64, conv_kernel_size=7, **extra,
    )  # fmt: skip
    projector = Blip2QFormerConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        encoder_hidden_size=64 if plus else 32, cross_attention_frequency=1, vocab_size=100,
    )  # fmt: skip
    config_class = GraniteSpeechPlusConfig if plus else GraniteSpeechConfig
    config = config_class(
        text_config=text, encoder_config=encoder, projector_config=projector, audio_token_index=audio,
        has_lora_adapter=False,
    )  # fmt: skip
    model_class = GraniteSpeechPlusForConditionalGeneration if plus else GraniteSpeechForConditionalGeneration
    model = _lively(model_class(config), seed, 0.15)
    model.generation_config.eos_token_id = 2
    processor = GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), tokenizer)
    return _pipe(model, processor)


def tiny_qwen(seed: int = 0) -> SpeechRecognitionPipeline:
    tokenizer = tiny_tokenizer(QWEN_SPECIAL)
    names = ("audio_token", "audio_bos_token", "audio_eos_token")
    for name, token in zip(names, QWEN_SPECIAL, strict=False):
        setattr(tokenizer, name, token)
    audio = tokenizer.convert_tokens_to_ids("<|audio_pad|>")
    encoder = Qwen3ASREncoderConfig(
        num_mel_bins=80, d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64, output_dim=32,
        downsample_hidden_size=8,
    )  # fmt: skip
    text = Qwen3Config(**_sizes(VOCAB_SIZE + len(QWEN_SPECIAL), head_dim=8, max_position_embeddings=256))
    model = Qwen3ASRForConditionalGeneration(
        Qwen3ASRConfig(audio_config=encoder, text_config=text, audio_token_id=audio)
    )
    processor = Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(feature_size=80), tokenizer)
    model = _lively(model, seed)
    model.generation_config.eos_token_id = 2
    return _pipe(model, processor)


def tiny_voxtral(seed: int = 0) -> SpeechRecognitionPipeline:
    tokenizer = tiny_tokenizer(VOXTRAL_SPECIAL)
    audio = tokenizer.convert_tokens_to_ids("[AUDIO]")
    encoder = VoxtralEncoderConfig(
        num_mel_bins=80, hidden_size=32, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        max_source_positions=100,
    )  # fmt: skip
    text = LlamaConfig(**_sizes(VOCAB_SIZE + len(VOXTRAL_SPECIAL), max_position_embeddings=256))
    model = VoxtralForConditionalGeneration(
        VoxtralConfig(audio_config=encoder, text_config=text, audio_token_id=audio)
    )
    processor = VoxtralProcessor(WhisperFeatureExtractor(feature_size=80, chunk_length=2), tokenizer)
    model = _lively(model, seed)
    model.generation_config.eos_token_id = 2
    return _pipe(model, processor)


def tiny_whisper_model(seed: int = 0, layers: int = 2, multilingual: bool = False) -> WhisperForConditionalGeneration:
    tokenizer = tiny_tokenizer(WHISPER_SPECIAL)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in WHISPER_SPECIAL}
    config = WhisperConfig(
        vocab_size=VOCAB_SIZE + len(WHISPER_SPECIAL), num_mel_bins=80, encoder_layers=1, decoder_layers=layers,
        encoder_attention_heads=4, decoder_attention_heads=4, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_source_positions=100, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=ids["<|startoftranscript|>"], suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = _lively(WhisperForConditionalGeneration(config), seed)
    generation = model.generation_config
    generation._from_model_config = False
    generation.no_timestamps_token_id = ids["<|notimestamps|>"]
    generation.suppress_tokens, generation.begin_suppress_tokens = [9, 10], [4, 11]
    generation.is_multilingual = multilingual
    if multilingual:
        generation.lang_to_id = {"<|en|>": ids["<|en|>"], "<|fr|>": ids["<|fr|>"]}
        generation.task_to_id = {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]}
    return model


def tiny_whisper(seed: int = 0, multilingual: bool = False) -> SpeechRecognitionPipeline:
    processor = WhisperProcessor(
        WhisperFeatureExtractor(feature_size=80, chunk_length=2), tiny_tokenizer(WHISPER_SPECIAL)
    )
    return _pipe(tiny_whisper_model(seed, multilingual=multilingual), processor)


def _pipe(model: Any, processor: Any) -> SpeechRecognitionPipeline:
    pipe = SpeechRecognitionPipeline(model, processor)
    pipe.set_progress_bar_config(disable=True)
    return pipe


FAMILIES = {
    "granite": tiny_granite,
    "granite-plus": lambda seed=0: tiny_granite(seed, plus=True),
    "qwen3-asr": tiny_qwen,
    "voxtral": tiny_voxtral,
    "whisper": tiny_whisper,
    "whisper-multilingual": lambda seed=0: tiny_whisper(seed, multilingual=True),
}
