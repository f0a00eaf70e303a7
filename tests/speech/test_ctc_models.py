"""Any CTC model of transformers hears for any recogniser: posteriors, labels, and the exact text whatever it heard."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GraniteSpeech5CTCConfig,
    GraniteSpeech5EncoderConfig,
    GraniteSpeech5FeatureExtractor,
    GraniteSpeech5ForCTC,
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from mmspec.speech.ctc_drafter import CTCDrafter
from mmspec.speech.ctc_models import CTCModel, label_vocabulary
from mmspec.speech.vocabulary import CharacterVocabulary, TokenizerVocabulary
from tests.oracles.speech import RATE, VOCAB_SIZE, babble, tiny_asr, tiny_tokenizer
from tests.oracles.speech_families import tiny_whisper


def wav2vec2(folder: Path) -> dict[str, Any]:
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    config = Wav2Vec2Config(
        vocab_size=len(letters), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        conv_dim=(16, 16), conv_kernel=(10, 8), conv_stride=(10, 32), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, pad_token_id=0,
    )  # fmt: skip
    return {
        "model": Wav2Vec2ForCTC(config).eval(),
        "processor": Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), tokenizer),
    }


def parakeet(folder: Path) -> dict[str, Any]:
    encoder = ParakeetEncoderConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, conv_kernel_size=5,
        subsampling_conv_channels=8, num_mel_bins=80, max_position_embeddings=400,
    )  # fmt: skip
    config = ParakeetCTCConfig(vocab_size=VOCAB_SIZE + 1, pad_token_id=VOCAB_SIZE, encoder_config=encoder)
    return {
        "model": ParakeetForCTC(config).eval(), "processor": ParakeetFeatureExtractor(feature_size=80),
        "tokenizer": tiny_tokenizer(("<blank>",)),
    }  # fmt: skip


def granite5(folder: Path) -> dict[str, Any]:
    encoder = GraniteSpeech5EncoderConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_mel_bins=80, context_size=16, max_position_embeddings=64, conv_kernel_size=7,
    )  # fmt: skip
    config = GraniteSpeech5CTCConfig(vocab_size=VOCAB_SIZE, encoder_config=encoder, pad_token_id=0)
    return {
        "model": GraniteSpeech5ForCTC(config).eval(), "processor": GraniteSpeech5FeatureExtractor(),
        "tokenizer": tiny_tokenizer(),
    }  # fmt: skip


MODELS = {"wav2vec2": wav2vec2, "parakeet": parakeet, "granite-speech-5": granite5}
CLIPS = [(babble(1.6, 0), RATE), (babble(0.6, 1), RATE)]


@pytest.fixture(params=MODELS)
def parts(request: Any, tmp_path: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    return MODELS[request.param](tmp_path)


def test_posteriors(parts: dict[str, Any]) -> None:
    ctc = CTCModel(**parts)
    posterior = ctc.posterior(CLIPS[0][0])
    assert torch.allclose(posterior.log_probs.exp().sum(-1), torch.ones(posterior.num_frames), atol=1e-4)
    assert posterior.blank == parts["model"].config.pad_token_id
    assert posterior.num_frames * posterior.seconds_per_frame == pytest.approx(1.6)
    assert posterior.log_probs.shape[1] == parts["model"].config.vocab_size
    text = "".join(ctc.vocabulary.pieces(posterior.runs()))
    assert not any(special in text for special in ("<pad>", "<blank>", "</s>", "|"))


@pytest.mark.parametrize("verifier", ["tiny", "whisper"])
def test_it_drafts_for_any_recogniser(parts: dict[str, Any], verifier: str, tmp_path: Path) -> None:
    pipe = {"tiny": tiny_asr, "whisper": tiny_whisper}[verifier]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = pipe(CLIPS, speculate=False, max_new_tokens=8)
        pipe.drafter = CTCDrafter(**parts)
        output = pipe(CLIPS, max_new_tokens=8)
        assert output.tokens == plain.tokens
        assert all(word.start is not None for word in output.words[0])
        pipe.drafter.save_pretrained(tmp_path / "drafter")
        pipe.drafter = CTCDrafter.from_pretrained(tmp_path / "drafter")
        assert pipe(CLIPS, max_new_tokens=8).words == output.words


def test_upper_case_letters_are_labels_of_lower_case_text(tmp_path: Path) -> None:
    ctc = CTCModel(**wav2vec2(tmp_path))
    assert isinstance(ctc.vocabulary, CharacterVocabulary)
    assert [ctc.vocabulary.text[label] for label, _ in ctc.vocabulary.labels("a cat, 5")] == list("A CAT ")
    assert not ctc.vocabulary.cased


def test_labels_must_be_known() -> None:
    assert isinstance(label_vocabulary(tiny_tokenizer(), VOCAB_SIZE, 0), TokenizerVocabulary)
    with pytest.raises(ValueError, match=f"no token {VOCAB_SIZE}"):
        label_vocabulary(tiny_tokenizer(), VOCAB_SIZE + 2, VOCAB_SIZE + 1)
    with pytest.raises(ValueError, match="tokenizer"):
        CTCModel(parakeet(Path())["model"], ParakeetFeatureExtractor())


def test_missing_weights_are_named(tmp_path: Path) -> None:
    """Fault 28."""
    from safetensors.torch import load_file, save_file

    CTCDrafter(**parakeet(tmp_path)).save_pretrained(tmp_path / "drafter")
    file = tmp_path / "drafter" / "model" / "model.safetensors"
    tensors = load_file(file)
    removed = tensors.pop(sorted(tensors)[0])
    assert removed is not None
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="missing"):
        CTCDrafter.from_pretrained(tmp_path / "drafter")
