"""Tokens and processor of the embedded vision-language model: one token a character, so that it can read any string."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlavaProcessor, PixtralImageProcessorPil, PreTrainedTokenizerFast

from mmspec.training.vlm_lines import WIDTH

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "<answer>")
"""Tokens 0 to 5: padding, begin, end, no known character, a patch of a picture, the mark between question and answer."""

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What can be written: the newline and printable ASCII."""

VOCAB_SIZE = len(SPECIALS) + len(CHARACTERS)

CHAT_TEMPLATE = (
    "<s>{% for message in messages %}{% if message['role'] == 'assistant' %}<answer>{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer with one token a character."""
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=list(SPECIALS[4:]), clean_up_tokenization_spaces=False,
    )  # fmt: skip


def picture_processor(patch_size: int = 16, longest_edge: int = WIDTH) -> LlavaProcessor:
    """Processor that keeps the proportions of a picture and cuts it into patches; several in one prompt have one size.

    Args:
        patch_size: Side of a patch in pixels.
        longest_edge: Larger pictures are made smaller, to this.
    """
    images = PixtralImageProcessorPil(
        patch_size={"height": patch_size, "width": patch_size}, size={"longest_edge": longest_edge},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    return LlavaProcessor(
        images, character_tokenizer(), patch_size=patch_size, vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE, image_token="<image>",
    )  # fmt: skip
