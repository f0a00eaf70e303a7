"""Word and character error rates after Whisper's basic normaliser (Radford et al., 2023): case and punctuation do not
count. Numbers stay as they are written; transcripts of the embedded sets spell them out, and so does the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers.models.whisper.english_normalizer import BasicTextNormalizer


def normalised(texts: Sequence[str]) -> list[str]:
    """``texts`` as they are compared."""
    normaliser = BasicTextNormalizer()
    return [str(normaliser(text)).strip() for text in texts]


def error_rates(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Corpus rates ``wer`` and ``cer`` of ``texts``: substitutions, deletions and insertions over reference length.

    Raises:
        ImportError: Without the package jiwer.
        ValueError: If the numbers differ, or no reference holds a word.
    """
    try:
        import jiwer
    except ImportError as error:
        raise ImportError("Error rates need jiwer: pip install 'mmspec[bench]'.") from error
    if len(references) != len(texts):
        raise ValueError(f"There are {len(references)} references for {len(texts)} texts.")
    wanted, given = normalised(references), normalised(texts)
    if not any(wanted):
        raise ValueError("No reference holds a word.")
    # jiwer refuses an empty reference; what was written there counts as inserted words
    pairs = [(reference, text) for reference, text in zip(wanted, given, strict=True) if reference]
    extra = [text for reference, text in zip(wanted, given, strict=True) if not reference]
    words = jiwer.process_words([r for r, _ in pairs], [t for _, t in pairs])
    characters = jiwer.process_characters([r for r, _ in pairs], [t for _, t in pairs])
    rates = {}
    for name, counts, inserted in (
        ("wer", words, sum(len(text.split()) for text in extra)),
        ("cer", characters, sum(len(text) for text in extra)),
    ):
        errors = counts.substitutions + counts.deletions + counts.insertions + inserted
        rates[name] = errors / (counts.hits + counts.substitutions + counts.deletions)
    return rates
