"""The text beside the frames: shares, padding, speed, and the same inputs in training and in speech."""

from __future__ import annotations

import pytest
import torch

from mmspec.speech.talker import SpeechTalker, with_silence
from mmspec.speech.talker_model import TalkerModel
from mmspec.speech.text_track import TextTrack
from mmspec.speech.utterances import text_tokens
from mmspec.training.tts_documents import Spoken, join, pack
from mmspec.training.tts_talker import TalkerTrainer
from tests.oracles.synthesis import BOOKS, CODES, lively, tiny_talker


@pytest.fixture(scope="module")
def talker() -> SpeechTalker:
    return tiny_talker(track_blocks=2)


def test_frames_read_what_they_overlap() -> None:
    track = lively(TextTrack(5, 4, 3, 1))
    track.moving.weight.data.zero_()
    track.still.bias.data.zero_()
    states = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    spread = track.spread(states, torch.tensor([[0.5, 1.25, 0.0]]), 4)[0]
    one, two, _ = track.still(states)[0]
    expected = torch.stack([0.5 * one + 0.5 * two, 0.75 * two, 0 * one, 0 * one])
    torch.testing.assert_close(spread, expected)
    track.moving.weight.data.fill_(1.0)
    moving = track.spread(states, torch.tensor([[2.0, 0.0, 0.0]]), 2)[0] - one
    torch.testing.assert_close(moving[0], -moving[1])  # its first half, then its second


def test_padding_changes_nothing(talker: SpeechTalker) -> None:
    assert talker.text_track is not None
    texts = [text_tokens("abc de"), text_tokens("f")]
    padded = torch.nn.utils.rnn.pad_sequence([with_silence(text, 0) for text in texts], batch_first=True)
    present = torch.arange(padded.shape[1]) < torch.tensor([[8], [3]])
    together = talker.text_track(talker.text_embedding(padded), present)
    for row, text in enumerate(texts):
        alone = talker.text_track(talker.text_embedding(with_silence(text, 0))[None])[0]
        torch.testing.assert_close(together[row, : len(alone)], alone)


def test_speed_and_reference_set_the_length(talker: SpeechTalker) -> None:
    tokens = text_tokens("one, two")
    usual, slow = talker.read(tokens), talker.read(tokens, speed=0.5)
    assert abs(len(slow.track) - 2 * len(usual.track)) <= 3
    codes = torch.randint(CODES, (7, BOOKS), generator=torch.Generator().manual_seed(0))
    continued = talker.read(tokens, before=codes, heard=5)
    assert len(continued.prompt) == 8
    assert 0 < len(continued.track) < len(usual.track)
    assert torch.equal(continued.beside(len(continued.track) + 2)[-1], torch.zeros(32))
    with pytest.raises(ValueError, match="no text track"):
        tiny_talker().read(tokens, speed=2.0)


@pytest.mark.parametrize("stack", [1, 2])
@torch.no_grad()
def test_speech_reads_what_training_showed(stack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the trainer, packed and uncached, are those of the talker that speaks, frame by frame."""
    generator, talker = torch.Generator().manual_seed(1), tiny_talker(track_blocks=2, frame_stack=stack)
    parts = [
        Spoken(text, torch.randint(CODES, (n, stack * BOOKS), generator=generator), torch.rand(len(text) + 2) / 2)
        for text, n in (("so it", 3), ("goes.", 4), ("on", 2))
    ]
    documents = [join(parts[:2]), parts[2]]
    special = (talker.config.pad_code, talker.config.begin_code, talker.config.end_code)
    packed = pack(documents, 14, special)
    trainer = TalkerTrainer.__new__(TalkerTrainer)
    torch.nn.Module.__init__(trainer)
    trainer.talker = talker
    states = trainer.states(packed, packed.codes)[0]
    for number, document in enumerate(documents):
        planned = document.durations.log()[None]
        monkeypatch.setattr(talker.text_track.durations, "forward", lambda text, planned=planned: planned)
        model = TalkerModel(talker, [talker.read(text_tokens(document.text))], len(document.codes))
        made = [model.prefill()[1]]
        made += [model.advance(None, codes[None])[1] for codes in document.codes]
        mine = states[packed.document[0] == number]
        torch.testing.assert_close(torch.cat(made), mine, atol=1e-5, rtol=1e-5)


def test_joined_durations_cover_all_frames() -> None:
    first = Spoken("a.", torch.zeros(3, 2), torch.tensor([0.5, 1.0, 0.5, 0.25]))
    second = Spoken("b", torch.zeros(2, 2), torch.tensor([0.25, 1.0, 0.5]))
    both = join([first, second])
    assert both.text == "a. b"
    assert both.durations.tolist() == [0.5, 1.0, 0.5, 1.25, 1.0, 0.5]
    assert float(both.durations[:4].sum()) == 3 + 0.25
