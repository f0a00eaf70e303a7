"""The recipes of the embedded voice on made-up recordings: they run, resume exactly, and what they save speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec import MaskPredictor, ResidualDrafter, TextToSpeechPipeline
from mmspec.speech.codec import SpeechCodec, cheapest
from mmspec.speech.talker import SpeechTalker
from mmspec.training import tts_codec, tts_drafter, tts_durations, tts_maskgit, tts_quantizer, tts_talker
from mmspec.training.loop import step_generator
from mmspec.training.tts_card import model_card
from mmspec.training.tts_data import read_recordings, transcript
from mmspec.training.tts_documents import Spoken, draw_documents, join, pack
from tests.oracles.synthesis import tiny_heads, tiny_mask_predictor, tiny_voice

TALKER = {
    "frames": 60, "row_width": 48, "longest": 20, "ahead_frames": 24, "track_blocks": 1, "hidden_size": 16, "num_layers": 1,
    "intermediate_size": 24, "predictor_hidden_size": 16, "predictor_layers": 1, "predictor_intermediate_size": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: Any) -> Path:
    """Recordings of tones, in the form that the corpus is stored in."""
    folder: Path = tmp_path_factory.mktemp("voice")
    rng = np.random.default_rng(0)
    time = np.arange(8000) / 16_000
    waves, about = [], []
    for number in range(12):
        tone = np.sin(2 * np.pi * (150 + 60 * number) * time) * rng.uniform(0.2, 0.5)
        waves.append((tone * 32767).astype(np.int16)[: 5000 + 250 * number])
        about.append([f"tone-{number}", f"tone {'abcdefghijkl'[number]}", number == 11])
    np.savez(
        folder / "recordings.npz", samples=np.concatenate(waves), lengths=np.array([len(w) for w in waves]),
        about=np.array(json.dumps(about)),
    )  # fmt: skip
    seconds = {
        name: [len(wave) / 16_000 / (len(text) + 2)] * (len(text) + 2)
        for (name, text, _), wave in zip(about, waves, strict=True)
    }
    (folder / "durations.json").write_text(json.dumps(seconds))
    return folder


@pytest.fixture(scope="module")
def quantizer(data: Path, tmp_path_factory: Any) -> Path:
    output = tmp_path_factory.mktemp("quantizer")
    config = tts_quantizer.QuantizerConfig(
        data=data, output=output, num_codebooks=3, num_codes=8, code_dim=6, rounds=3, offsets=(0, 200), rate_weight=0.0,
    )  # fmt: skip
    tts_quantizer.train(config)
    return output


@pytest.fixture(scope="module")
def talker(data: Path, quantizer: Path, tmp_path_factory: Any) -> Path:
    output: Path = tmp_path_factory.mktemp("talker")
    tts_talker.train(
        tts_talker.TalkerConfig(data=data, quantizer=quantizer, output=output, steps=3, log_every=1, **TALKER)
    )  # fmt: skip
    return output


def test_more_books_are_closer(quantizer: Path) -> None:
    loaded = tts_quantizer.load_quantizer(quantizer)
    assert loaded.codebooks.shape == (3, 8, 6)
    frames = torch.randn(300, 20, generator=torch.Generator().manual_seed(0))
    config = tts_quantizer.QuantizerConfig(
        data=quantizer, output=quantizer, num_codebooks=4, num_codes=8, code_dim=20, rate_weight=0.0
    )  # fmt: skip
    fitted = tts_quantizer.fit_quantizer(frames, config)
    codes = fitted.encode(frames)
    wanted = (frames - fitted.mean) @ fitted.basis
    errors = [float((fitted.decode(codes[:, :used]) - wanted).square().mean()) for used in range(1, 5)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.8 * errors[0]
    with pytest.raises(FileNotFoundError, match="quantizer"):
        tts_quantizer.load_quantizer(quantizer / "nowhere")


def test_prices_make_codes_easier_to_foresee() -> None:
    vectors = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    entropies = []
    for weight in (0.0, 1.0):
        config = tts_quantizer.QuantizerConfig(
            data=Path("."), output=Path("."), num_codes=16, rounds=5, rate_weight=weight
        )  # fmt: skip
        book, prices = tts_quantizer.k_means(vectors, config, step_generator(0, 0))
        shares = torch.bincount(cheapest(vectors, book, prices), minlength=16) / len(vectors)
        entropies.append(float(-(shares * shares.clamp_min(1e-9).log()).sum()))
    assert entropies[1] < 0.8 * entropies[0]
    with pytest.raises(ValueError, match="rate_weight"):
        tts_quantizer.QuantizerConfig(data=Path("."), output=Path("."), rate_weight=-1.0)


def test_codec(data: Path, quantizer: Path, tmp_path: Path) -> None:
    config = tts_codec.CodecConfig(
        data=data, quantizer=quantizer, output=tmp_path, steps=2, batch_size=2, frames=2, width=8, inner=12
    )  # fmt: skip
    codec = SpeechCodec.from_pretrained(tts_codec.train(config))
    assert torch.equal(codec.quantizer.codebooks, tts_quantizer.load_quantizer(quantizer).codebooks)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["held_out"]["mel_distance"] > 0


def test_resumed_is_uninterrupted(data: Path, quantizer: Path, talker: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": data, "quantizer": quantizer, "output": tmp_path, "log_every": 1, **TALKER}
    loss_of, calls = tts_talker.TalkerTrainer.loss, []

    def cut(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return loss_of(self, *arguments)

    half = tts_talker.TalkerConfig(steps=3, checkpoint_minutes=1e-6, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tts_talker.TalkerTrainer, "loss", cut)
        with pytest.raises(KeyboardInterrupt):
            tts_talker.train(half)
    tts_talker.train(tts_talker.TalkerConfig(steps=3, resume=True, **settings))
    ours, theirs = (SpeechTalker.from_pretrained(folder / "talker").state_dict() for folder in (tmp_path, talker))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", ["chained", "gated", "medusa", "lookahead"])
def test_drafter(kind: str, data: Path, quantizer: Path, talker: Path, tmp_path: Path) -> None:
    config = tts_drafter.ResidualDrafterConfig(
        data=data, quantizer=quantizer, talker=talker, output=tmp_path, kind=kind, steps=12, frames=60, batch_size=240,
        hidden_size=4, first_top_k=4, rest_top_k=4, log_every=1, warmup_steps=1, learning_rate=0.1,
    )  # fmt: skip
    drafter = ResidualDrafter.from_pretrained(tts_drafter.train(config))
    losses = [entry["loss"] for entry in json.loads((tmp_path / "log.json").read_text())]
    assert min(losses[-3:]) < losses[0] - 0.01
    assert [len(row) for row in drafter.config.prior] == [2, 1]
    network = SpeechTalker.from_pretrained(talker / "talker").eval()
    drafter.check_target(network)
    pipe = TextToSpeechPipeline(network, tts_talker.load_encoder(quantizer), drafter)
    pipe.set_progress_bar_config(disable=True)
    asked: dict[str, Any] = {"seed": 0, "max_frames": 3, "output_type": "tokens"}
    with pytest.warns(UserWarning, match="were cut"):
        spec, plain = pipe("tone", **asked, temperature=0.5), pipe("tone", **asked, temperature=0.5, speculate=False)
    assert torch.equal(spec.tokens[0], plain.tokens[0])


def test_durations_are_learnt_alone(data: Path, quantizer: Path, talker: Path, tmp_path: Path) -> None:
    config = tts_durations.DurationsConfig(
        data=data, quantizer=quantizer, talker=talker, output=tmp_path, steps=60, frames=80, longest=20, log_every=1,
        warmup_steps=1, learning_rate=0.02, average_decay=0.5,
    )  # fmt: skip
    made = SpeechTalker.from_pretrained(tts_durations.train(config)).state_dict()
    before = SpeechTalker.from_pretrained(talker / "talker").state_dict()
    changed = {name for name in made if not torch.equal(made[name], before[name])}
    assert changed
    assert all("text_track.durations" in name for name in changed)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["trained"]["character"] < 0.1  # recordings of tones give all characters of a text the same time


@pytest.fixture(scope="module")
def maskgit(data: Path, quantizer: Path, talker: Path, tmp_path_factory: Any) -> Path:
    output: Path = tmp_path_factory.mktemp("maskgit")
    config = tts_maskgit.MaskPredictorConfig(
        data=data, quantizer=quantizer, talker=talker, output=output, steps=30, batch_size=64, hidden_size=16,
        num_layers=1, intermediate_size=24, warmup_steps=1, learning_rate=0.03, log_every=1, average_decay=0.5,
    )  # fmt: skip
    assert tts_maskgit.train(config) == output / "mask_predictor"
    return output


def test_maskgit(quantizer: Path, talker: Path, maskgit: Path) -> None:
    report = json.loads((maskgit / "report.json").read_text())
    assert report["trained"]["masked_code_loss"] < 0.9 * json.loads((maskgit / "log.json").read_text())[0]["loss"]
    assert report["held_out"]["masked_code_loss"] > 0
    network = SpeechTalker.from_pretrained(talker / "talker").eval()
    filler = MaskPredictor.from_pretrained(maskgit / "mask_predictor").eval()
    pipe = TextToSpeechPipeline(network, tts_talker.load_encoder(quantizer), mask_predictor=filler)
    pipe.set_progress_bar_config(disable=True)
    with pytest.warns(UserWarning, match="were cut"):
        output = pipe("tone", seed=0, max_frames=3, temperature=0.5, depth="maskgit", depth_steps=2)
    assert output.stats.method == "maskgit"
    network.codec_head.weight.data.neg_()
    with pytest.raises(ValueError, match="`mask_predictor` was made for another target"):
        pipe("tone", depth="maskgit", depth_steps=2)


@pytest.mark.parametrize("masked", [True, False])
def test_card(masked: bool) -> None:
    codec = {"mel_distance": 0.5, "si_sdr": 1.0}
    talker = {"first_code_loss": 0.25, "residual_code_loss": 1.0}
    losses = {
        "codec": codec,
        "talker": talker,
        "maskgit": {"masked_code_loss": 1.75},
        "durations": {"character": 0.125},
    }
    names = ["codec", "talker", "durations", "drafter", *(["maskgit"] if masked else [])]
    training: dict[str, Any] = {
        "recordings": 3, "minutes_of_speech": 1.5, "listening": {"spoken": {"items": 3, "wer": 0.5, "cer": 0.25}},
        "stages": {name: {"steps": 70, "minutes": 2.0} for name in names},
        "reports": {name: dict.fromkeys(("trained", "held_out"), losses[name]) for name in names if name != "drafter"},
    }  # fmt: skip
    sampling = {"temperature": 0.5, "top_k": 4}
    pipe = tiny_voice(
        ResidualDrafter(heads=tiny_heads("gated")), first=sampling, rest=sampling,
        mask_predictor=tiny_mask_predictor() if masked else None,
    )  # fmt: skip
    card = model_card(pipe, training, "It hums.")
    assert ("1.75 nats" in card) == ("train tts maskgit" in card) == ("--maskgit runs" in card) == masked
    assert "\n\n\n" not in card
    assert "nats" in card


def test_masks_follow_the_cosine() -> None:
    masked = tts_maskgit.draw_masks(4000, 7, step_generator(0, 0))
    counts = torch.bincount(masked.sum(-1), minlength=8) / 4000
    edges = (
        torch.tensor([0, *range(8)]) / 7
    )  # ceil(7 cos(pi u / 2)) = n for u between the arc cosines of (n - 1) / 7 and n / 7
    torch.testing.assert_close(counts, (edges[:-1].acos() - edges[1:].acos()) * 2 / torch.pi, atol=0.03, rtol=0)
    assert float(masked.float().mean(0).std()) < 0.02  # no place is preferred


def test_stacked_frames(data: Path, quantizer: Path, tmp_path: Path) -> None:
    """Two frames a step, through all stages that read the talker."""
    shared: dict[str, Any] = {"data": data, "quantizer": quantizer, "steps": 2, "log_every": 1}
    folders = {name: tmp_path / name for name in ("talker", "durations", "drafter", "maskgit")}
    tts_talker.train(tts_talker.TalkerConfig(output=folders["talker"], frame_stack=2, **shared, **TALKER))
    tts_durations.train(
        tts_durations.DurationsConfig(
            output=folders["durations"], talker=folders["talker"], frames=40, longest=20, **shared
        )
    )  # fmt: skip
    shared["talker"] = folders["durations"]
    drafter = tts_drafter.train(
        tts_drafter.ResidualDrafterConfig(
            output=folders["drafter"], frames=30, hidden_size=4, batch_size=16, first_top_k=4, rest_top_k=4, **shared
        )
    )  # fmt: skip
    masked = tts_maskgit.train(
        tts_maskgit.MaskPredictorConfig(
            output=folders["maskgit"], hidden_size=16, num_layers=1, intermediate_size=24, batch_size=16, **shared
        )
    )  # fmt: skip
    network = SpeechTalker.from_pretrained(folders["durations"] / "talker").eval()
    assert network.codes_per_step == 6
    config = tts_talker.TalkerConfig(
        output=tmp_path, frame_stack=2, **{k: shared[k] for k in ("data", "quantizer", "steps")}
    )
    codec = tts_talker.load_encoder(quantizer)
    trained, _ = tts_talker.read_material(config, codec)
    waveform = read_recordings(data)[0].waveform
    assert torch.equal(
        trained[0].codes.view(-1, 3)[: len(waveform) // codec.frame_samples],
        codec.encode(waveform)[: len(waveform) // codec.frame_samples],
    )
    assert -1 < float(trained[0].durations.sum()) - len(trained[0].codes) <= 0
    pipe = TextToSpeechPipeline(
        network, codec, ResidualDrafter.from_pretrained(drafter),
        mask_predictor=MaskPredictor.from_pretrained(masked).eval(),
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    asked: dict[str, Any] = {"seed": 0, "max_frames": 3, "output_type": "tokens", "temperature": 0.5}
    with pytest.warns(UserWarning, match="were cut"):
        spec, plain, other = (pipe("tone", **asked, **how) for how in ({}, {"speculate": False}, {"depth": "maskgit"}))
    assert torch.equal(spec.tokens[0], plain.tokens[0])
    assert other.tokens[0].shape == (3, 3)


def test_drafted_frames_have_the_models_law(talker: Path) -> None:
    """Codes that the recipe draws are the ones that its own noise picks from the laws it keeps."""
    network = SpeechTalker.from_pretrained(talker / "talker").eval()
    config = tts_drafter.ResidualDrafterConfig(
        data=talker, quantizer=talker, talker=talker, output=talker, steps=1, first_top_k=4, rest_top_k=4
    )  # fmt: skip
    drawn = tts_drafter.draw_frames(network, torch.randn(7, 16), config)
    assert torch.equal((drawn.law + drawn.noise).argmax(-1), drawn.codes[:, 1:])
    with pytest.raises(ValueError, match="offset, gated, medusa, chained, lookahead"):
        tts_drafter.ResidualDrafterConfig(
            data=talker, quantizer=talker, talker=talker, output=talker, steps=1, kind="hydra"
        )  # fmt: skip


def test_documents() -> None:
    material = [
        Spoken(text, torch.full((n, 3), n), torch.full((len(text) + 2,), n / (len(text) + 2)))
        for text, n in (("a.", 2), ("bb", 3), ("c", 4))
    ]
    assert join(material).text == "a. bb, c"
    documents = draw_documents(material, 40, 9, step_generator(0, 0))
    assert sum(len(d.codes) for d in documents) >= 40
    assert all(len(d.codes) <= 9 for d in documents)
    packed = pack(documents, 20, (8, 9, 10))
    assert int(packed.is_frame.sum()) == sum(len(d.codes) for d in documents)
    # every document: code 0 of the next frame, then the end
    for row in range(len(packed.document)):
        for number in packed.document[row].unique().tolist():
            if number < 0:
                continue
            mine = (packed.document[row] == number).nonzero()[:, 0]
            speech = mine[packed.is_frame[row, mine]]
            begin = int(speech[0]) - 1
            assert int(packed.codes[row, begin, 0]) == 9
            targets = packed.target[row, begin : begin + len(speech) + 1]
            assert targets.tolist() == [*packed.codes[row, speech, 0].tolist(), 10]
    seen = packed.mask[0, 0]
    other = packed.document[0][:, None] != packed.document[0][None]
    assert not bool((seen & other).any())
    assert not bool(seen.triu(1).any())


def test_transcripts(data: Path) -> None:
    assert transcript("Press 1 [beep], please!") == "press one, please."
    assert transcript("[tone]") == ""
    assert sum(recording.held_out for recording in read_recordings(data)) == 1
    with pytest.raises(FileNotFoundError, match="tts data"):
        read_recordings(data / "nowhere")
