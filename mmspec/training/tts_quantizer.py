"""First stage of the embedded voice: the codes. Nothing here needs gradients.

Frames of log-mel spectra are projected on their principal components, and codebooks are fitted one after the other by k-means (Lloyd, 1982)
to what those before left over (Juang and Gray, 1982, "Multiple stage vector quantization for speech coding"), with a price on rare
codes (Chou et al., 1989, "Entropy-constrained vector quantization"). Frames of the recordings start at several offsets, so
that codes do not depend on where a frame happens to begin.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from mmspec.speech.codec import FrameQuantizer, SpeechCodec, cheapest
from mmspec.training.loop import step_generator
from mmspec.training.tts_data import read_recordings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class QuantizerConfig:
    """Settings of the codes.

    Args:
        data: Folder of the recordings.
        output: Folder of the result.
        num_codebooks, num_codes, code_dim: Sizes.
        offsets: Samples at which the frames of a recording start.
        rounds: Rounds of k-means a book.
        rate_weight: Price of a nat, in squared units of the components; 0 makes all codes equally dear.
        seed: Seed of the first centres.
        device: Where to compute.
    """

    data: Path
    output: Path
    num_codebooks: int = 8
    num_codes: int = 256
    code_dim: int = 96
    offsets: tuple[int, ...] = (0, 213, 427, 640, 853, 1067)
    rounds: int = 15
    rate_weight: float = 0.1
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if min(self.num_codebooks, self.code_dim, self.rounds, len(self.offsets)) < 1 or self.num_codes < 2:
            raise ValueError("Sizes, rounds and offsets must be positive, and `num_codes` at least 2.")
        if self.rate_weight < 0:
            raise ValueError(f"`rate_weight` must be at least 0, got {self.rate_weight}.")


def train(config: QuantizerConfig) -> Path:
    """Fit the codes and save them with their measurements; returns their file."""
    recordings = read_recordings(config.data)
    reader = SpeechCodec()  # its log-mel spectra; no weight of it is used
    parts: dict[bool, list[Tensor]] = {False: [], True: []}
    for recording in recordings:
        for offset in config.offsets[:1] if recording.held_out else config.offsets:
            wave = F.pad(recording.waveform, (offset, 0))
            parts[recording.held_out].append(
                reader.frames(F.pad(wave, (0, -len(wave) % reader.frame_samples))[None])[0]
            )
    frames, held_out = (torch.cat(parts[kind]).to(config.device) for kind in (False, True))
    quantizer = fit_quantizer(frames, config)
    report: dict[str, Any] = {"frames": len(frames), "mel_distance": [], "entropy_bits": []}
    codes = quantizer.encode(held_out)
    for used in range(1, config.num_codebooks + 1):
        rebuilt = quantizer.decode(codes[:, :used]) @ quantizer.basis.T + quantizer.mean
        report["mel_distance"].append(float((rebuilt - held_out).abs().mean()) * NATS)
        share = torch.bincount(codes[:, used - 1], minlength=config.num_codes).double() / len(codes)
        report["entropy_bits"].append(float(-(share * share.clamp_min(1e-12).log2()).sum()))
    config.output.mkdir(parents=True, exist_ok=True)
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("quantizer: %s", report)
    path = config.output / "quantizer.safetensors"
    save_file({name: value.cpu().contiguous() for name, value in quantizer.state_dict().items()}, path)
    return path


NATS = 4 * 2.302585 / 2
"""Natural logarithm of an amplitude in units of the log-mel spectra, whose unit is four decades of power."""


def fit_quantizer(frames: Tensor, config: QuantizerConfig) -> FrameQuantizer:
    """Components and codebooks of ``frames`` (n, F)."""
    quantizer = FrameQuantizer(frames.shape[1], config.num_codebooks, config.num_codes, config.code_dim)
    mean = frames.mean(0)
    covariance = (frames - mean).T @ (frames - mean) / len(frames)
    basis = torch.linalg.eigh(covariance.double()).eigenvectors.flip(1)[:, : config.code_dim].float()
    rest = (frames - mean) @ basis
    books, prices = [], []
    for index in tqdm(range(config.num_codebooks), desc="codebooks"):
        book, dear = k_means(rest, config, step_generator(config.seed, index))
        books.append(book)
        prices.append(dear)
        rest = rest - book[cheapest(rest, book, dear)]
    state = {"mean": mean, "basis": basis, "codebooks": torch.stack(books), "prices": torch.stack(prices)}
    quantizer.load_state_dict(state)
    return quantizer


def k_means(vectors: Tensor, config: QuantizerConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Centres (K, E) of ``vectors`` (n, E) and their prices (K,). The first one starts at zero: it changes nothing.

    Raises:
        ValueError: If there are fewer vectors than centres.
    """
    count = config.num_codes
    if len(vectors) < count:
        raise ValueError(f"{len(vectors)} frames are too few for {count} codes.")
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:count]]
    centres[0] = 0
    prices = torch.zeros(count)
    for _ in range(config.rounds):
        chosen = cheapest(vectors, centres, prices)
        sizes = torch.bincount(chosen, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, chosen, vectors)
        centres = torch.where((sizes > 0)[:, None], sums / sizes.clamp_min(1)[:, None], centres)
        # half a vector each, so that no code becomes infinitely dear
        shares = (sizes + 0.5) / (sizes + 0.5).sum()
        prices = -config.rate_weight * shares.log()
    return centres, prices


def load_quantizer(folder: Path) -> FrameQuantizer:
    """The codes in an output folder.

    Raises:
        FileNotFoundError: If there are none.
    """
    path = folder / "quantizer.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; run 'mmspec train tts quantizer' first.")
    state = load_file(path)
    books = state["codebooks"]
    quantizer = FrameQuantizer(len(state["mean"]), *books.shape)
    quantizer.load_state_dict(state)
    return quantizer
