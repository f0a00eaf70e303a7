"""The codec: streamed is whole, blocks are causal, bad input is refused."""

from __future__ import annotations

import pytest
import torch

from mmspec.speech.codec import SpeechCodec, cheapest, overlap_add
from mmspec.speech.codec_stream import BLOCK, CodecStream, decode
from tests.oracles.synthesis import BOOKS, CODES, tiny_codec


@pytest.fixture(scope="module")
def codec() -> SpeechCodec:
    return tiny_codec()


def codes_of(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(CODES, (frames, BOOKS), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("frames", [1, 2, 3, 7])
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_streamed_is_whole_bit_for_bit(codec: SpeechCodec, frames: int, cut: int) -> None:
    codes = codes_of(frames)
    stream = CodecStream(codec)
    parts = [stream.push(part) for part in codes.split(cut)]
    streamed = torch.cat([*parts, stream.push(codes[:0], last=True)])
    whole = decode(codec, codes)
    assert len(whole) == frames * codec.frame_samples
    assert torch.equal(streamed, whole)


def test_blocks_equal_one_pass(codec: SpeechCodec) -> None:
    codes = codes_of(9)
    with torch.no_grad():
        one_pass = codec.synthesise(codec.quantizer.decode(codes)[None])[0]
    assert torch.allclose(decode(codec, codes), one_pass, atol=1e-5)
    assert float(one_pass.abs().max()) > 1e-3


def test_later_frames_change_nothing_before(codec: SpeechCodec) -> None:
    first, other = codes_of(8), codes_of(8)
    other[6:] = codes_of(2, seed=9)
    ours, theirs = decode(codec, first), decode(codec, other)
    final = 6 * codec.frame_samples - 640
    assert torch.equal(ours[:final], theirs[:final])
    assert not torch.equal(ours[final:], theirs[final:])


def test_first_samples_come_with_the_first_block(codec: SpeechCodec) -> None:
    stream = CodecStream(codec)
    assert len(stream.push(codes_of(BLOCK - 1))) == 0
    assert len(stream.push(codes_of(1))) == BLOCK * codec.frame_samples - 240


def test_encoding(codec: SpeechCodec) -> None:
    wave = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 0.1
    codes = codec.encode(wave)
    assert codes.shape == (3, BOOKS)
    assert torch.equal(codec.encode(torch.nn.functional.pad(wave, (0, 3 * 1280 - 3000))), codes)
    vectors, book = torch.randn(5, 4), torch.randn(7, 4)
    free = torch.zeros(len(book))
    assert torch.equal(cheapest(vectors, book, free), torch.cdist(vectors, book).argmin(-1))
    dear = free.index_fill(0, cheapest(vectors, book, free)[:1], 1e6)
    chosen = cheapest(vectors, book, dear)
    assert not torch.equal(chosen[:1], cheapest(vectors, book, free)[:1])


def test_windows_add_up_to_one() -> None:
    window = torch.hann_window(640)
    pieces = (window**2)[None, None].expand(1, 12, -1)
    assert torch.allclose(overlap_add(pieces)[0, 640:-640], torch.ones(12 * 160 + 480 - 1280), atol=1e-5)


def test_bad_input(codec: SpeechCodec) -> None:
    for wave, said in ((torch.zeros(0), "at least 1"), (torch.full((9,), float("nan")), "not finite")):
        with pytest.raises(ValueError, match=said):
            codec.encode(wave)
    with pytest.raises(ValueError, match="a book has"):
        decode(codec, torch.full((2, BOOKS), CODES))
    with pytest.raises(ValueError, match="frames"):
        decode(codec, torch.zeros(2, BOOKS + 1, dtype=torch.long))
    with pytest.raises(ValueError, match="kernel"):
        SpeechCodec(kernel=1)
    with pytest.raises(ValueError, match="width"):
        SpeechCodec(width=0)
