"""Captions for LlamaGen: the cleaning its captions went through, and the text features its decoder was trained on.

Cleaning follows the documented steps of the DeepFloyd IF and PixArt cleaners (also diffusers' ``clean_caption``), here
with the standard library only: diffusers asks for ftfy and BeautifulSoup. The one difference is text with broken
encodings ("Ã©" for "é"), which ftfy would repair and which is kept here.

Features are those of Sun et al., 2024: flan-t5-xl's last hidden states, padded on the left with zero rows.

Symbols of the shapes: B captions, T caption slots, C width of the text encoder.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote_plus

import torch
from torch import Tensor

_FILE_ENDINGS = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DASHES = "-֊־᐀᠆‐-―⸗⸚⸺⸻⹀〜〰゠︱︲﹘﹣-"

_Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> _Rules:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


_DOMAIN = r"[a-z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_ADDRESSES = _rules(
    (r"<person>", "person"),  # how some data sets anonymise
    (rf"\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{_DOMAIN})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{_DOMAIN})", ""),
)
_SYMBOLS = _rules(
    (r"@\w+\b", ""),  # nicknames
    (r"[\u31c0-\u9fff]+", ""),  # CJK strokes, ideographs and their compatibility forms
    (f"[{_DASHES}]+", "-"),
    ("[`´«»“”¨]", '"'),
    ("[‘’]", "'"),
    (r"&quot;?|&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),  # article numbers
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_FILE_ENDINGS})", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_PHRASES = _rules(
    (r"\b[a-z]{1,3}\d{3,15}\b", ""),  # product codes
    (r"\b[a-z]+\d+[a-z]+\b", ""),
    (r"\b\d+[a-z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FILE_ENDINGS})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-z]+\d+[a-z]+\d+[a-z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # sizes; the second letter is Cyrillic
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
)
_ENDS = _rules(
    (r"^[\"'](.+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)
_WORD_JOINS = re.compile("[-_]")


def clean_caption(caption: str) -> str:
    """Remove addresses, markup, ideographs, codes and advertising from a caption and normalise its punctuation.

    Lower-cases. Runs twice, as for the training captions, because removals may uncover new matches.
    """
    return _clean_once(_clean_once(caption))


def _clean_once(caption: str) -> str:
    caption = _apply(_ADDRESSES, unquote_plus(caption).strip().lower())
    caption = _apply(_SYMBOLS, _without_markup(caption))
    if len(_WORD_JOINS.findall(caption)) > 3:  # a-file-name-like-this
        caption = _WORD_JOINS.sub(" ", caption)
    caption = html.unescape(html.unescape(_normalise(caption)))
    return _apply(_ENDS, _apply(_PHRASES, caption)).strip()


def _apply(rules: _Rules, text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _normalise(text: str) -> str:
    """Compose accents; replace ligatures and full-width letters, but not all that NFKC would (it spoils "x²")."""
    plain = "".join(unicodedata.normalize("NFKC", c) if "ﬀ" <= c <= "ﬆ" or "！" <= c <= "～" else c for c in text)
    return unicodedata.normalize("NFC", plain)


class _TextOnly(HTMLParser):
    """Collects the text between tags, without that of scripts and style sheets."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.parts.append(data)


def _without_markup(text: str) -> str:
    parser = _TextOnly()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)


@torch.no_grad()
def encode_captions(
    captions: str | Sequence[str],
    tokenizer: Any,
    text_encoder: Any,
    *,
    max_length: int = 120,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    truncate: bool = False,
    left: bool = True,
) -> tuple[Tensor, Tensor]:
    """Turn captions into the text features of the decoder.

    Args:
        captions: One caption or several, cleaned already if they shall be (:func:`clean_caption`).
        tokenizer, text_encoder: A T5 tokenizer and encoder of transformers.
        max_length: Caption slots T, end token included.
        device, dtype: Where to and as what the features are returned; by default as the encoder gives them.
        truncate: Cut longer captions (their end token stays) instead of raising.
        left: Whether padding comes before the caption, as LlamaGen reads image token 0 off the last slot, or behind.

    Returns:
        Features (B, T, C), zero in padded slots, and the mask (B, T), True where a slot holds a token. Row b with n
        tokens has them in its *last* n slots, or in its first n if not ``left``.

    Raises:
        ValueError: If there is no caption, or one has more than ``max_length`` tokens and ``truncate`` is False.
    """
    captions = [captions] if isinstance(captions, str) else list(captions)
    if not captions:
        raise ValueError("`captions` is empty; give at least one caption.")
    if not truncate:
        _check_lengths(captions, tokenizer, max_length)
    tokens = tokenizer(
        captions,
        padding="max_length",
        padding_side="right",
        truncation=truncate,
        max_length=max_length,
        return_attention_mask=True,
        return_tensors="pt",
    ).to(text_encoder.device)
    mask = tokens.attention_mask  # (B, T), ones first
    features = text_encoder(input_ids=tokens.input_ids, attention_mask=mask).last_hidden_state
    if left:
        features, mask = left_pad(features, mask)
    else:
        features, mask = zero_padding(features, mask), mask.bool()
    return features.to(device=device, dtype=dtype), mask.to(device=device)


def left_pad(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Turn right-padded text features (B, T, C), whose ``mask`` (B, T) is 1 for tokens, into the decoder's layout.

    Returns:
        The features with each row's tokens last and padding zero (B, T, C), and their boolean mask (B, T).
    """
    # A rotation by the number of tokens moves the padding, and it alone, to the front.
    length = features.shape[1]
    slots = (torch.arange(length, device=mask.device) + mask.sum(1, keepdim=True)) % length
    mask = mask.gather(1, slots).bool()
    features = features.gather(1, slots[..., None].expand_as(features))
    return zero_padding(features, mask), mask


def zero_padding(features: Tensor, mask: Tensor) -> Tensor:
    """``features`` (B, T, C) with zeros where ``mask`` (B, T) is 0."""
    return features.masked_fill(~mask.bool()[..., None], 0)  # not a product: 0 * inf of a padded row would be nan


def _check_lengths(captions: list[str], tokenizer: Any, max_length: int) -> None:
    lengths = [len(ids) for ids in tokenizer(captions, truncation=False, verbose=False).input_ids]
    if max(lengths) > max_length:
        worst = lengths.index(max(lengths))
        raise ValueError(
            f"Caption {worst} has {lengths[worst]} tokens, its end included; the limit is {max_length}. Shorten it, "
            f"or pass `truncate=True` to drop its end."
        )
