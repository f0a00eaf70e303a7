"""The character model of the recogniser's drafter, counted on the texts that the recogniser was trained on.

Held-out texts are in none of them. It knows the spellings that the language model has learnt, so a draft is what that
model will make of the sounds rather than the sounds alone.
"""

from __future__ import annotations

import random
from pathlib import Path

from mmspec.speech.char_ngram import CharacterNGram
from mmspec.speech.tiny_asr import CTC_VOCABULARY
from mmspec.training.asr_data import CorpusConfig, texts_of

ORDER = 5
LEAST = 2
"""5-grams seen once are dropped; they are a third of all and draft hardly better."""

PROMPT_REPEATS = 6
SPOKEN, WRITTEN = 30_000, 8_000


def character_model(data: Path, seed: int = 0) -> CharacterNGram:
    """Count the recorded prompts, several times, and samples of the other texts of the corpus in ``data``."""
    texts = texts_of(CorpusConfig(data=data))
    rng = random.Random(seed)
    drawn = list(texts.prompts.values()) * PROMPT_REPEATS
    drawn += rng.sample(texts.spoken, min(SPOKEN, len(texts.spoken)))
    drawn += rng.sample(texts.written, min(WRITTEN, len(texts.written)))
    return CharacterNGram.fit(drawn, "".join(CTC_VOCABULARY[1:]), ORDER, LEAST)
