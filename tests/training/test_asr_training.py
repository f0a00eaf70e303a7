"""The recogniser's recipe on a few made-up utterances: batches, losses, learning, and workers that agree."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from mmspec.speech.tiny_asr import EncoderSizes
from mmspec.training.asr import AsrConfig, AsrNetwork, asr_loss
from mmspec.training.asr_batches import BatchConfig, Sources, draw_batch, draw_sequence, sources
from mmspec.training.asr_ctc import CtcConfig, CtcNetwork, ctc_loss
from mmspec.training.asr_data import Utterance, read_shard, write_shard
from mmspec.training.asr_reader import ReaderConfig, corrupted, new_reader
from mmspec.training.asr_sets import Sample, read_set
from mmspec.training.asr_tokenizer import train_tokenizer
from mmspec.training.loop import LoopConfig, fit
from mmspec.training.workers import batch_number

SPEAKER = "en_US_f_Allison"
SIZES = EncoderSizes(hidden_size=32, layers=2, heads=4, feed_forward=48, context=25, kernel=5)


def utterance(text: str, voice: str = SPEAKER, language: str = "en") -> Utterance:
    """Frames in which each letter lights a band of its own."""
    frames = torch.full((10 * len(text), 80), -1.0)
    for place, letter in enumerate(text):
        frames[10 * place : 10 * place + 8, (ord(letter) * 3) % 78 : (ord(letter) * 3) % 78 + 3] = 0.9
    return Utterance(frames.half(), text, voice, language)


@pytest.fixture(scope="module")
def material() -> Sources:
    digits = [
        utterance(word) for word in ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    ]
    corpus = [*digits, utterance("press one"), utterance("hello you", "flite-slt"), utterance("bye", "piper-joe"),
              utterance("здесь", "ru_RU_f_IvrvoiceRU", "ru")]  # fmt: skip
    return sources(corpus, frozenset({"eight five one", "six one", "three six two"}))


def test_a_batch_is_a_function_of_seed_and_step(material: Sources) -> None:
    config = BatchConfig(seconds=4.0, row_seconds=(1.0, 2.0), shares=(0.3, 0.2, 0.3, 0.2))
    first, again = draw_batch(material, config, 3, 5, 2), draw_batch(material, config, 3, 5, 2)
    assert torch.equal(first.features, again.features)
    assert first.texts == again.texts
    other = draw_batch(material, config, 3, 6, 2)
    assert first.features.shape != other.features.shape or not torch.equal(first.features, other.features)
    assert first.features.shape[2] == 160
    assert first.features.abs().max() <= 1
    assert int(first.lengths.max()) == first.features.shape[1]


def test_batches_hold_what_they_should(material: Sources) -> None:
    config = BatchConfig(seconds=20.0, row_seconds=(1.0, 2.0))
    batches = [draw_batch(material, config, 0, step, 2) for step in range(40)]
    filled = sum(int(batch.lengths.sum()) for batch in batches) / sum(
        batch.features[..., 0].numel() for batch in batches
    )
    assert filled > 0.7  # little padding
    assert 15 < sum(float(batch.lengths.sum()) / 50 for batch in batches) / 40 < 27
    foreign = torch.cat([batch.foreign for batch in batches])
    assert 0.02 < foreign.float().mean() < 0.4


def test_joined_sequences_are_never_those_of_the_evaluation(material: Sources) -> None:
    config = BatchConfig(seconds=60.0, shares=(0.0, 1.0, 0.0, 0.0), join=0.0, augment=False)
    texts = {text for step in range(30) for text in draw_batch(material, config, 0, step, 2).texts}
    assert len(texts) > 100
    assert not texts & material.banned
    drawn = {draw_sequence(material.words, random.Random(seed)) for seed in range(3000)}
    assert material.banned & drawn  # the control: without the ban they would come


def test_shards_keep_utterances(tmp_path: Path) -> None:
    made = [utterance("one two"), utterance("да", "ru_RU_f_IvrvoiceRU", "ru")]
    write_shard(tmp_path / "x.npz", made)
    for before, after in zip(made, read_shard(tmp_path / "x.npz"), strict=True):
        assert torch.equal(before.frames, after.frames)
        assert (before.text, before.voice, before.language) == (after.text, after.voice, after.language)


def test_sets_are_read_as_written(tmp_path: Path) -> None:
    import soundfile

    wave = np.sin(np.arange(800) / 7).astype(np.float32) * 0.5
    soundfile.write(tmp_path / "0.flac", wave, 16_000, subtype="PCM_16")
    entry = {"file": "0.flac", "text": "one", "name": "n", "voice": "v"}
    (tmp_path / "transcripts.json").write_text(json.dumps([entry]))
    (sample,) = read_set(tmp_path)
    assert isinstance(sample, Sample)
    assert (sample.text, sample.name, sample.voice) == ("one", "n", "v")
    np.testing.assert_allclose(sample.waveform.numpy(), wave, atol=1e-4)


def test_ctc_loss_is_the_sum_over_paths() -> None:
    logits = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
    probabilities = logits[0].softmax(-1)
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        merged = [label for label, _ in itertools.groupby(path)]
        if [label for label in merged if label] == [1, 2]:
            total += float(torch.stack([probabilities[t, label] for t, label in enumerate(path)]).prod())
    assert ctc_loss(logits, torch.tensor([4]), [[1, 2]]).item() == pytest.approx(-np.log(total) / 2, rel=1e-4)
    assert ctc_loss(logits, torch.tensor([1]), [[1, 2]]).item() == 0  # too short for its labels


def test_corruption_keeps_the_end() -> None:
    tokens = torch.arange(4, 24)
    changed = torch.stack([corrupted(tokens, 0.3, 32, torch.Generator().manual_seed(s)) for s in range(200)])
    assert 0.2 < (changed != tokens).float().mean() < 0.35
    assert (changed[:, -1] == tokens[-1]).all()
    assert changed.min() >= 4


def tiny_network(tmp_path: Path) -> tuple[AsrNetwork, AsrConfig]:
    config = AsrConfig(data=tmp_path, reader=tmp_path, ctc=tmp_path, output=tmp_path, steps=1, precision="fp32")
    torch.manual_seed(0)
    ctc = CtcNetwork(CtcConfig(data=tmp_path, output=tmp_path, steps=1, encoder=SIZES), list("десьз"))
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "feed_forward": 48}
    return AsrNetwork(ctc, new_reader(ReaderConfig(data=tmp_path, output=tmp_path, steps=1, **sizes), SIZES)), config


def test_all_parts_learn(material: Sources, tmp_path: Path) -> None:
    network, config = tiny_network(tmp_path)
    tokenizer = train_tokenizer(["one"], 32)
    batches = BatchConfig(seconds=6.0, row_seconds=(1.0,), shares=(0.5, 0.1, 0.2, 0.2), augment=False)
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    losses = []
    for step in range(40):
        batch = draw_batch(material, batches, 0, step % 8, 2)
        loss, numbers = asr_loss(network, batch, ["one two", "press"], tokenizer, config, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        assert numbers.keys() >= {"ctc", "text", "heard", "read"}
    assert np.mean(losses[-8:]) < 0.75 * np.mean(losses[:8])
    still = [name for name, weight in network.named_parameters() if torch.equal(weight, before[name])]
    assert not still


class Line(nn.Module):
    """A linear map that learns ``target``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def loss(self, number: int) -> Tensor:
        inputs = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return (self.weight @ inputs).square().sum()


def _work(rank: int, world: int, folder: str, port: int) -> None:
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    line = Line()
    config = LoopConfig(output=Path(folder) / f"run-{world}", steps=6, precision="fp32", warmup_steps=1, log_every=100)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        if world > 1:
            return line.loss(batch_number(step)), {}
        return (line.loss(2 * step) + line.loss(2 * step + 1)) / 2, {}

    fit(line, loss_of, config)
    torch.save(line.weight.detach(), Path(folder) / f"weight-{world}-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


def test_two_workers_take_the_steps_of_one(tmp_path: Path) -> None:
    _work(0, 1, str(tmp_path), 0)
    mp.spawn(_work, args=(2, str(tmp_path), 29_000 + random.randrange(900)), nprocs=2)
    alone, first, second = (torch.load(tmp_path / f"weight-{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(alone, Line().weight.detach(), atol=1e-3)
    assert (tmp_path / "run-2" / "checkpoint.pt").is_file()
