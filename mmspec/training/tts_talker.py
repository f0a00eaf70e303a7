"""Third stage of the embedded voice: talker and code predictor.

Loss: cross-entropy of code 0 and the end after every frame, and of the residual codes, which together weigh more since they are learnt later.
The talker's state and the outputs of the code predictor are also asked for codes further ahead, through those codes' own heads
(Gloeckle et al., 2024, "Better & Faster Large Language Models via Multi-token Prediction"); it adds no weights and changes no law, but
makes drafts good. Codes and whole frames of the past are replaced by random ones: codes that were recorded once tell the sentence by themselves,
and without that the talker would copy from them and never read the text.

Frames read the text with the durations of the alignment. A second run goes on with durations that are somewhat wrong, as planned ones are: the
voice then follows the sound that it has made where text and sound disagree. Planning durations is the next stage.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.speech.codec import SpeechCodec
from mmspec.speech.speakable import ALPHABET
from mmspec.speech.talker import SpeechTalker
from mmspec.training.loop import LoopConfig, fit, restore_average, step_generator
from mmspec.training.tts_alignment import read_durations
from mmspec.training.tts_data import Recording, read_recordings
from mmspec.training.tts_documents import Packed, Spoken, draw_documents, misplace, pack, spoken
from mmspec.training.tts_quantizer import load_quantizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TalkerConfig(LoopConfig):
    """Settings of the talker's training.

    Args:
        data: Folder of the recordings.
        quantizer: Output folder of ``mmspec train tts quantizer``.
        frames: Steps of a batch, about; they replace ``batch_size``. A step is a frame, or a stack of frames.
        row_width: Places of a row of the batch.
        longest: Most steps of a joined document.
        corrupted: Share of the past codes that are replaced.
        dropped: Largest share of the past steps that are replaced whole; each row of a batch draws its own below it.
        misplaced: Frames that characters may be too early or too late, at most.
        start_from: Output folder of an earlier run of this stage that this one goes on from.
        residual_weight: Weight of the mean loss of the residual codes, that of code 0 being 1.
        ahead_weight: Weight of predicting codes after the next one.
        ahead_frames: Steps of a batch that learn that, which spares most of its work.
        track_blocks: Blocks of the text track.
        frame_stack: Frames that a step of the talker draws; recordings are filled with silence to whole stacks.
        hidden_size, num_layers, intermediate_size: Of the talker.
        predictor_hidden_size, predictor_layers, predictor_intermediate_size: Of the code predictor; heads have a
            fourth of the width.
    """

    data: Path
    quantizer: Path
    frames: int = 400
    row_width: int = 161
    longest: int = 160
    corrupted: float = 0.1
    dropped: float = 0.5
    misplaced: float = 0.0
    start_from: Path | None = None
    residual_weight: float = 3.0
    ahead_weight: float = 0.3
    ahead_frames: int = 100
    track_blocks: int = 4
    frame_stack: int = 1
    hidden_size: int = 192
    num_layers: int = 5
    intermediate_size: int = 512
    predictor_hidden_size: int = 128
    predictor_layers: int = 4
    predictor_intermediate_size: int = 384
    learning_rate: float = 1.2e-3
    weight_decay: float = 0.01
    average_decay: float = 0.995

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_from is not None:
            object.__setattr__(self, "start_from", Path(self.start_from))
        if self.misplaced < 0:
            raise ValueError(f"`misplaced` must be at least 0, got {self.misplaced}.")


def build_talker(config: TalkerConfig, codec: SpeechCodec) -> SpeechTalker:
    """An untrained talker for the codes of ``codec``."""
    codes, books = codec.config.num_codes, codec.config.num_codebooks
    return SpeechTalker(
        text_vocab_size=len(ALPHABET) + 1, num_codebooks=books, num_codes=codes, hidden_size=config.hidden_size,
        num_layers=config.num_layers, head_dim=config.hidden_size // 4, intermediate_size=config.intermediate_size,
        predictor_hidden_size=config.predictor_hidden_size, predictor_layers=config.predictor_layers,
        predictor_head_dim=config.predictor_hidden_size // 4,
        predictor_intermediate_size=config.predictor_intermediate_size, first_vocab_size=codes + 3, pad_code=codes,
        begin_code=codes + 1, end_code=codes + 2, track_blocks=config.track_blocks,
        frame_stack=config.frame_stack,
    )  # fmt: skip


class TalkerTrainer(nn.Module):
    """The talker with its losses."""

    def __init__(self, talker: SpeechTalker, config: TalkerConfig) -> None:
        super().__init__()
        self.talker, self.config = talker, config
        for name, parameter in talker.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02 if "embedding" not in name else 0.05)

    def states(self, packed: Packed, codes: Tensor) -> Tensor:
        """Talker states (R, N, D), the frames of ``packed`` holding ``codes`` (R, N, G)."""
        talker = self.talker
        first = talker.codec_embedding(codes[..., 0])
        inputs = torch.where(packed.is_frame[..., None], talker.frames(codes), first)
        known = packed.document >= 0
        track = self.track(packed)[packed.document.clamp_min(0), packed.position]
        return talker(inputs + track * known[..., None], packed.position, packed.mask)

    def track(self, packed: Packed) -> Tensor:
        """The text beside each document's frames (C, T + 1, D)."""
        track = self.talker.text_track
        assert track is not None
        states = track(self.talker.text_embedding(packed.text), packed.present)
        return track.spread(states, packed.durations, int(packed.position.max()) + 1)

    def loss(self, packed: Packed, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Total loss, and its parts for the log."""
        past = corrupt(packed, self.config.corrupted, self.talker.config.num_codes, generator, self.config.dropped)
        states = self.states(packed, past)
        first = F.cross_entropy(self.talker.codec_head(states).float().transpose(1, 2), packed.target)
        chosen = packed.is_frame.flatten().nonzero()[:, 0]
        chosen = chosen[torch.randperm(len(chosen), generator=generator)]
        rest, ahead = self.residual_losses(states.flatten(0, 1)[chosen - 1], packed.codes.flatten(0, 1)[chosen])
        total = first + self.config.residual_weight * rest + self.config.ahead_weight * ahead
        parts = {"first": first, "rest": rest, "ahead": ahead}
        return total, {name: part.item() for name, part in parts.items()}

    def residual_losses(self, states: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of codes (M, G) given talker states (M, D) before them: of the next code, and of guesses ahead."""
        predictor, books = self.talker.code_predictor, codes.shape[1]
        inputs = torch.cat([states[:, None], self.talker.embed_codes(codes[:, :-1], 0)], dim=1)
        hidden = predictor(inputs, torch.arange(books)[None])[:, 1:]  # (M, G - 1, E), position p = index + 1
        logits = torch.einsum("mpe,pke->mkp", hidden, predictor.lm_head).float()
        some = slice(self.config.ahead_frames)
        sources = torch.cat([predictor.start(states[some])[:, None], hidden[some]], dim=1)  # (m, G, E)
        ahead = torch.einsum("mpe,gke->mkpg", sources, predictor.lm_head).float()
        target = codes[some, None, 1:].expand(-1, books, -1)
        later = torch.ones(books, books - 1, dtype=torch.bool).triu()  # the talker's state guesses all of them
        losses = F.cross_entropy(ahead, target, reduction="none").mean(0)
        return F.cross_entropy(logits, codes[:, 1:]), losses[later].mean()


def reader(talker: SpeechTalker, config: TalkerConfig) -> TalkerTrainer:
    """The losses of a talker that is trained already, whose weights are left alone."""
    trainer = TalkerTrainer.__new__(TalkerTrainer)
    nn.Module.__init__(trainer)
    trainer.talker, trainer.config = talker, config
    return trainer


def corrupt(packed: Packed, share: float, num_codes: int, generator: torch.Generator, dropped: float = 0.0) -> Tensor:
    """Codes (R, N, G) in which a ``share`` of the frames' codes are random ones, and up to ``dropped`` of a row's frames."""
    random = torch.randint(num_codes, packed.codes.shape, generator=generator)
    hit = torch.rand(packed.codes.shape, generator=generator) < share
    rows, width = packed.document.shape
    limit = dropped * torch.rand(rows, 1, generator=generator)
    hit = hit | (torch.rand(rows, width, generator=generator) < limit)[..., None]
    return torch.where(hit & packed.is_frame[..., None], random, packed.codes)


def load_encoder(folder: Path) -> SpeechCodec:
    """A codec that encodes with the codes of ``folder``; its decoder is not trained."""
    quantizer = load_quantizer(folder)
    books, codes, width = quantizer.codebooks.shape
    codec = SpeechCodec(num_codebooks=books, num_codes=codes, code_dim=width)
    codec.quantizer.load_state_dict(quantizer.state_dict())
    return codec


def read_material(config: TalkerConfig, codec: SpeechCodec) -> tuple[list[Spoken], list[Spoken]]:
    """Recordings with codes: those to train on, and those held out."""
    seconds = read_durations(config.data)
    recordings: list[Recording] = [r for r in read_recordings(config.data) if r.name in seconds]
    stack = config.frame_stack
    codes = [codec.encode(r.waveform, stack).view(-1, stack * codec.config.num_codebooks) for r in recordings]
    made = spoken(recordings, codes, seconds, codec.frame_rate / stack)
    pairs = list(zip(recordings, made, strict=True))
    return [s for r, s in pairs if not r.held_out], [s for r, s in pairs if r.held_out]


def specials(talker: SpeechTalker) -> tuple[int, int, int]:
    """The codes pad, begin and end."""
    return talker.config.pad_code, talker.config.begin_code, talker.config.end_code


def train(config: TalkerConfig) -> Path:
    """Train talker and code predictor and save them with their measurements; returns the talker's folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
    """
    torch.manual_seed(config.seed)
    codec = load_encoder(config.quantizer)
    material, held_out = read_material(config, codec)
    trainer = TalkerTrainer(build_talker(config, codec), config)
    if config.start_from is not None:
        trainer.talker.load_state_dict(SpeechTalker.from_pretrained(config.start_from / "talker").state_dict())
    kinds = specials(trainer.talker)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = step_generator(config.seed, step)
        documents = draw_documents(material, config.frames, config.longest, generator)
        packed = pack(documents, config.row_width, kinds)
        packed.durations = misplace(packed.durations, config.misplaced, generator)
        return trainer.loss(packed, generator)

    seconds = fit(trainer, loss_of, config)
    report = {
        "minutes": seconds / 60,
        "parameters": sum(p.numel() for p in trainer.parameters()),
        "trained": evaluate(trainer, material[:60]),
        "held_out": evaluate(trainer, held_out),
    }
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("talker: %s", report)
    trainer.talker.eval().save_pretrained(config.output / "talker")
    return config.output / "talker"


@torch.no_grad()
def evaluate(trainer: TalkerTrainer, material: list[Spoken]) -> dict[str, float]:
    """Mean cross-entropy in nats of code 0 and of the residual codes over single recordings."""
    packed = pack(material, trainer.config.row_width, specials(trainer.talker))
    states = trainer.states(packed, packed.codes)
    first = F.cross_entropy(trainer.talker.codec_head(states).float().transpose(1, 2), packed.target)
    chosen = packed.is_frame.flatten().nonzero()[:, 0]
    rest, _ = trainer.residual_losses(states.flatten(0, 1)[chosen - 1], packed.codes.flatten(0, 1)[chosen])
    return {"first_code_loss": first.item(), "residual_code_loss": rest.item()}


def load_talker(config: TalkerConfig) -> TalkerTrainer:
    """The averaged talker of the checkpoint in ``config.output``, also in the midst of its training."""
    trainer = TalkerTrainer(build_talker(config, load_encoder(config.quantizer)), config)
    restore_average(trainer, config.output)
    return trainer
