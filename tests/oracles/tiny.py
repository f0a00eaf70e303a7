"""Tiny random-weight models of the real classes."""

from __future__ import annotations

import torch
from diffusers import VQModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.drafters.feature import FeatureDrafter
from mmspec.drafters.fingerprint import fingerprint
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.pipelines.llamagen import LlamaGenPipeline

WORDS = [
    "a",
    "red",
    "green",
    "blue",
    "apple",
    "cat",
    "dog",
    "on",
    "the",
    "in",
    "big",
    "small",
    "house",
    "tree",
    "sun",
    "moon",
    "very",
    "old",
    "new",
    "of",
    "with",
    "and",
]


def tiny_transformer(seed: int = 0, **changes: object) -> LlamaGenTransformer:
    settings: dict = {
        "vocab_size": 24, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48,
        "grid_height": 3, "grid_width": 5, "condition_length": 8, "caption_dim": 16, "num_classes": 4,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaGenTransformer(**{**settings, **changes}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:  # large weights, so that laws differ clearly between tokens and prompts
                parameter.normal_(std=0.4 if parameter.dim() > 1 else 1.0)
    return model


def tiny_vq(vocab_size: int = 24) -> VQModel:
    torch.manual_seed(1)
    return VQModel(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1, latent_channels=4, vq_embed_dim=4, num_vq_embeddings=vocab_size, norm_num_groups=4,
        lookup_from_codebook=True,
    ).eval()  # fmt: skip


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{word: i + 3 for i, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def tiny_text_encoder() -> T5EncoderModel:
    torch.manual_seed(2)
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0)
    encoder = T5EncoderModel(config).eval()
    with torch.no_grad():
        encoder.shared.weight.normal_()
    return encoder


def tiny_pipeline(**changes: object) -> LlamaGenPipeline:
    settings: dict = {
        "transformer": tiny_transformer(), "vq": tiny_vq(), "text_encoder": tiny_text_encoder(),
        "tokenizer": tiny_tokenizer(), "guidance_scale": 2.0, "top_k": 12, "class_names": ["food", "sky", "sea", "city"],
    }  # fmt: skip
    pipe = LlamaGenPipeline(**{**settings, **changes})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_feature(
    transformer: LlamaGenTransformer, seed: int = 3, std: float = 0.3, **settings: object
) -> FeatureDrafter:
    """A random feature drafter for ``transformer``; over few codes it is often right by chance."""
    sizes = {name: transformer.config[name] for name in ("vocab_size", "hidden_size", "num_heads")}
    torch.manual_seed(seed)
    drafter = FeatureDrafter(intermediate_size=48, **{"target": fingerprint(transformer), **sizes, **settings})
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return drafter.eval()


def few_codes_pipeline(**changes: object) -> LlamaGenPipeline:
    """A tiny pipeline over five codes, so that drafts are accepted to any depth by chance."""
    settings: dict = {"transformer": tiny_transformer(vocab_size=5), "vq": tiny_vq(5), "top_k": 4}
    return tiny_pipeline(**{**settings, **changes})
