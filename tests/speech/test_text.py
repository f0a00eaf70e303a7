"""Between vocabularies: CTC labels to text, text to a verifier's tokens, and drafts that continue what is written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mmspec.speech.ctc import Run
from mmspec.speech.hypotheses import StyledHypothesis, TextHypothesis
from mmspec.speech.text import TextCodec, fold
from mmspec.speech.vocabulary import CharacterVocabulary, TokenizerVocabulary, hypothesis_text, word_spans
from tests.oracles.speech import tiny_tokenizer

CORPUS = [
    "the cat sat on the mat",
    "press four to place an outgoing call",
    "Hello, World. It's 10 past 3!",
    "数字 中文 字",
] * 4


def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


CODECS = {"pieces": TextCodec(tiny_tokenizer()), "bytes": TextCodec(byte_level(), prefix=" ")}
TEXT = "the cat is four in a bring thou"


@pytest.mark.parametrize("name", CODECS)
def test_encoding_is_a_fixed_point(name: str) -> None:
    codec = CODECS[name]
    for text in (TEXT, "a", "ing"):
        ids = codec.encode(text)
        assert codec.encode(codec.decode(ids)) == ids


@pytest.mark.parametrize("name", CODECS)
def test_a_draft_continues_its_own_tokens(name: str) -> None:
    codec = CODECS[name]
    row = TextHypothesis(TEXT)
    whole = codec.draft(row, [])
    assert codec.decode(whole).strip() == TEXT
    for count in range(1, len(whole)):
        assert codec.draft(row, whole[:count]) == whole[count:]
    assert codec.draft(row, whole) == []


@pytest.mark.parametrize("name", CODECS)
def test_a_draft_continues_inside_a_token(name: str) -> None:
    """What is written is spelt out letter by letter, unlike the tokenizer would; the rest joins on, in any case."""
    codec = CODECS[name]
    for text in ("the four", "bring"):
        row = TextHypothesis(text)
        for end in range(1, len(text)):
            start = codec.prefix + text[:1]
            committed = codec.encode(start) + codec.spell(text[1:end])
            if codec.decode(committed).strip() != text[:end].strip():
                continue  # a space has no piece of its own here
            tail = codec.draft(row, committed)
            assert codec.decode([*committed, *tail]).strip() == text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcdefgh ", min_size=1, max_size=20), st.integers(0, 20), st.sampled_from(sorted(CODECS)))
def test_joined_drafts_spell_the_text(text: str, cut: int, name: str) -> None:
    codec, wanted = CODECS[name], " ".join(text.split())
    if not wanted:
        return
    ids = codec.draft(TextHypothesis(wanted), [])
    kept = ids[: min(cut, len(ids))]
    assert (
        codec.decode([*kept, *codec.continuation(kept, codec.decode(ids)[len(codec.decode(kept)) :])]).strip()
        == wanted
    )


def test_word_starts() -> None:
    pieces = CODECS["pieces"]
    ids = pieces.encode("the bring four")
    assert [bool(pieces.begins_word[token]) for token in ids] == [
        pieces.tokenizer.convert_ids_to_tokens(token).startswith("▁") for token in ids
    ]
    codec = CODECS["bytes"]
    starts = [bool(codec.begins_word[token]) for token in codec.encode(" the mat")]
    assert starts[0]
    assert sum(starts) == 2
    cjk = [
        token
        for token in range(len(codec.tokenizer))
        if codec.tokenizer.decode([token]) in ("中", "字", "数字", "中文")
    ]
    assert all(bool(codec.begins_word[token]) for token in cjk)


def test_characters_fall_back_to_the_other_case_and_the_base_letter() -> None:
    lower, upper = CharacterVocabulary(["", *" abcdefghijklmnopqrstuvwxyz"]), CharacterVocabulary(["", *" ABCE"])
    assert [lower.text[label] for label, _ in lower.labels("Été, 5 Aé!")] == list("ete ae")
    assert [upper.text[label] for label, _ in upper.labels("abé")] == list("ABE")
    assert not lower.cased
    assert not upper.cased
    assert not lower.punctuated
    full = CharacterVocabulary(["", *" abcABC.,"])
    assert full.cased
    assert full.punctuated
    with pytest.raises(ValueError, match="ab"):
        CharacterVocabulary(["", "ab"])


def test_labels_of_a_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = TokenizerVocabulary(tokenizer, blank=0)
    ids = tokenizer.encode("the bring", add_special_tokens=False)
    runs = [Run(token, 2 * place, 2 * place) for place, token in enumerate(ids)]
    assert hypothesis_text(vocabulary.pieces(runs)) == "the bring"
    assert [label for label, _ in vocabulary.labels("the bring")] == ids
    assert [word for word, _, _ in word_spans(vocabulary.pieces(runs), runs)] == ["the", "bring"]
    shifted = TokenizerVocabulary(tokenizer, blank=0, offset=1)
    assert hypothesis_text(shifted.pieces([Run(r.label + 1, r.first, r.last) for r in runs])) == "the bring"


def test_uncased_drafts_for_a_verifier_that_writes_sentences() -> None:
    row = StyledHypothesis(TextHypothesis("HELLO WORLD IT IS"), sentences=True)
    assert row.text == "Hello world it is"
    assert row.after("Hello world.") == " It is"
    assert row.after("Hello w") == "orld it is"
    assert StyledHypothesis(TextHypothesis("HELLO"), sentences=False).text == "hello"


def test_fold_ignores_case_accents_and_punctuation() -> None:
    assert fold("Été,  it's OVER!") == "ete it's over"


def letters(prefix_space: str) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters, as that of the embedded recogniser."""
    pieces = ["<s>", *"abcdefghijklmnopqrstuvwxyz'", "▁"]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix_space)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prefix_space)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.mark.parametrize("prefix_space", ["always", "never"])
def test_single_characters_need_no_tokenizer_behind_a_text(prefix_space: str) -> None:
    quick, slow = TextCodec(letters(prefix_space)), TextCodec(letters(prefix_space))
    slow._letters = None
    assert quick._letters is not None
    assert TextCodec(tiny_tokenizer())._letters is None
    whole = quick.encode(TEXT)
    for cut in range(1, len(TEXT)):
        committed = quick.encode(TEXT[:cut])
        for tail in (TEXT[cut:], "x'y z", ""):
            assert quick.continuation(committed, tail) == slow.continuation(committed, tail)
        assert committed + quick.continuation(committed, TEXT[cut:]) == whole
    assert quick.continuation(whole, "ab9c") == quick.continuation(whole, "ab")
