"""Fifth stage of the embedded voice: the learned part of its residual drafter.

Talker states come from the recordings, codes from the model itself with the sampling it is used with, so that the drafter
sees the prefixes it will meet. Everything else is frozen. Loss, over all places p of a frame and distances j:

    0.8^(j-1) (CE(p~, q~) + 1 - sum min(p~, q~)),

p~ and q~ being the law that code p + j is drawn from and the draft's: its second part is the chance of rejection itself.

Symbols: M frames, G codes a frame, K codes of a book, D talker width, E predictor width.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.core.sampling import SamplingParams, process
from mmspec.drafters.fingerprint import fingerprint
from mmspec.speech.residual_drafter import ResidualDrafter
from mmspec.speech.residual_heads import KINDS, ResidualHeads
from mmspec.speech.talker import SpeechTalker
from mmspec.speech.talker_model import TalkerModel
from mmspec.training.loop import LoopConfig, fit, step_generator
from mmspec.training.tts_documents import pack
from mmspec.training.tts_states import open_talker
from mmspec.training.tts_talker import specials

logger = logging.getLogger(__name__)

RANKS = 8
"""Best guesses of a code whose chances are measured."""


@dataclass(frozen=True, kw_only=True)
class ResidualDrafterConfig(LoopConfig):
    """Settings of the drafter's training.

    Args:
        data: Folder of the recordings.
        quantizer, talker: Output folders of the stages before.
        kind: See :mod:`mmspec.speech.residual_heads`.
        hidden_size: Hidden width of ``chained``.
        frames: Frames drawn from the model; a tenth is kept to measure acceptance.
        first_temperature, first_top_k, rest_temperature, rest_top_k: Sampling that the model is used with.
        decay: Weight of a distance relative to the one before.
        siblings: Most guesses of a code in the drafts of the saved drafter.
        node_cost: Cost of a draft code in calls of the predictor, for the saved drafter.

    Raises:
        ValueError: If a number is out of range.
    """

    data: Path
    quantizer: Path
    talker: Path
    kind: str = "chained"
    hidden_size: int = 64
    frames: int = 8000
    first_temperature: float = 0.7
    first_top_k: int = 20
    rest_temperature: float = 0.5
    rest_top_k: int = 20
    decay: float = 0.8
    siblings: int = RANKS
    node_cost: float = 0.02
    batch_size: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 0.0
    average_decay: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in KINDS:
            raise ValueError(f"Unknown `kind` {self.kind!r}; choose one of {', '.join(KINDS)}.")
        if not 1 <= self.siblings <= RANKS:
            raise ValueError(f"`siblings` must lie in [1, {RANKS}], got {self.siblings}.")
        _ = self.first, self.rest

    @property
    def first(self) -> SamplingParams:
        return SamplingParams(self.first_temperature, self.first_top_k)

    @property
    def rest(self) -> SamplingParams:
        return SamplingParams(self.rest_temperature, self.rest_top_k)


@dataclass
class Drawn:
    """Frames that the model drew: talker states (M, D), codes (M, G), the noise (M, G - 1, K) and the log-law
    (M, G - 1, K) of the residual codes, and predictor outputs (M, G - 1, E) that drew them."""

    states: Tensor
    codes: Tensor
    noise: Tensor
    law: Tensor
    hidden: Tensor

    def rows(self, rows: Tensor | slice) -> Drawn:
        return Drawn(*(getattr(self, name)[rows] for name in ("states", "codes", "noise", "law", "hidden")))


@torch.no_grad()
def draw_frames(talker: SpeechTalker, states: Tensor, config: ResidualDrafterConfig) -> Drawn:
    """Draw a frame for each of the talker ``states`` (M, D), all residual codes one after the other."""
    predictor, books, codes = talker.code_predictor, talker.codes_per_step, talker.config.num_codes
    generator = step_generator(config.seed, -1)

    def gumbel(*shape: int) -> Tensor:
        return -torch.empty(shape).exponential_(generator=generator).log()

    logits = talker.codec_head(states).float()[:, :codes]
    frames = (process(logits, config.first) + gumbel(len(states), codes)).argmax(-1)[:, None]
    noise = gumbel(len(states), books - 1, codes)
    positions = torch.arange(books)
    for book in range(1, books):
        inputs = torch.cat([states[:, None], talker.embed_codes(frames, 0)], dim=1)
        hidden = predictor(inputs, positions[None, : book + 1])[:, 1:]
        law = process(predictor.logits(hidden[:, -1:], positions[book : book + 1])[:, 0], config.rest)
        frames = torch.cat([frames, (law + noise[:, book - 1]).argmax(-1)[:, None]], dim=1)
    law = process(predictor.logits(hidden, positions[1:]), config.rest).log_softmax(-1)
    return Drawn(states, frames, noise, law, hidden)


@torch.no_grad()
def collect(config: ResidualDrafterConfig) -> tuple[SpeechTalker, Drawn]:
    """The trained talker, and frames drawn from states that it has while it reads the recordings."""
    trainer, material, _ = open_talker(config.data, config.quantizer, config.talker)
    talker = trainer.talker.requires_grad_(False)
    order = torch.randperm(len(material), generator=step_generator(config.seed, 0)).tolist()
    found, count = [], 0
    for start in range(0, len(order), 40):
        packed = pack(
            [material[place] for place in order[start : start + 40]], trainer.config.row_width, specials(talker)
        )
        states = trainer.states(packed, packed.codes).flatten(0, 1)
        found.append(states[packed.is_frame.flatten().nonzero()[:, 0] - 1])
        count += len(found[-1])
        if count >= config.frames:
            break
    return talker, draw_frames(talker, torch.cat(found)[: config.frames], config)


class ResidualHeadsTrainer(nn.Module):
    """The learned part with the frozen parts that it goes through."""

    def __init__(self, heads: ResidualHeads, talker: SpeechTalker, config: ResidualDrafterConfig) -> None:
        super().__init__()
        self.heads, self.config = heads, config
        model = TalkerModel(talker, [talker.read(torch.tensor([1]))], 1)
        with torch.no_grad():
            self.register_buffer("table", model.code_table().detach(), persistent=False)
            self.register_buffer("lm_head", talker.code_predictor.lm_head.detach(), persistent=False)
        self._start = model.start_state
        self._inputs = model.inner_inputs
        self._predict = (
            talker.code_predictor.forward
        )  # not the module, which would be trained and saved with the heads

    table: Tensor
    lm_head: Tensor

    def drafts(self, drawn: Drawn) -> list[tuple[int, int, Tensor]]:
        """Book p of the newest code, distance j, and log-weights (M, K) of the draft of code p + j, for all p and j."""
        if self.heads.config.kind == "lookahead":
            return self._ahead(drawn)
        books = drawn.codes.shape[1]
        made = []
        for newest in range(books - 1):
            with torch.no_grad():
                origin = self._start(drawn.states) if newest == 0 else drawn.hidden[:, newest - 1]
            place = torch.full((len(origin),), newest)
            state, reads = self.heads.begin(origin, place), []
            if self.heads.config.kind == "chained":
                for book in range(newest + 1, books):
                    code = self.table[book - 1, drawn.codes[:, book - 1]]
                    state = self.heads.step(state, code, torch.full_like(place, book))
                    reads.append(state)
            else:
                code = self.table[newest, drawn.codes[:, newest]]
                reads = list(self.heads.spread(state, code, place, books - 1 - newest).unbind(1))
            for distance, read in enumerate(reads, start=1):
                scores = (read @ self.lm_head[newest + distance - 1].T).float()
                made.append((newest, distance, process(scores, self.soft)))
        return made

    def _ahead(self, drawn: Drawn) -> list[tuple[int, int, Tensor]]:
        """Drafts by vectors that stand behind code p - 1: the code of their own position is drawn, those after it guessed."""
        books = drawn.codes.shape[1]
        made = []
        for newest in range(1, books - 1):
            known = self._inputs(drawn.states, drawn.codes[:, :newest], 0).detach()
            tail = self.heads.inputs[newest + 1 :].expand(len(known), -1, -1)
            hidden = self._predict(torch.cat([known, tail], dim=1), torch.arange(books)[None])
            for book in range(newest + 1, books):
                scores = process((hidden[:, book] @ self.lm_head[book - 1].T).float(), self.soft)
                made.append((newest, book - newest, scores))
        return made

    @property
    def soft(self) -> SamplingParams:
        """The draft's law is trained without its cut, which has no gradient."""
        return SamplingParams(max(self.config.rest.temperature, 0.1))

    def loss(self, drawn: Drawn) -> tuple[Tensor, dict[str, float]]:
        total, accepted, weights = torch.zeros(()), 0.0, 0.0
        for newest, distance, scores in self.drafts(drawn):
            p, log_q = drawn.law[:, newest + distance - 1].exp(), scores.log_softmax(-1)
            cross = -(p * log_q).sum(-1).mean()
            overlap = torch.minimum(p, log_q.exp()).sum(-1).mean()
            weight = self.config.decay ** (distance - 1)
            total = total + weight * (cross + 1 - overlap)
            accepted, weights = accepted + weight * overlap.item(), weights + weight
        return total / weights, {"overlap": accepted / weights}

    @torch.no_grad()
    def acceptance(self, drawn: Drawn, ranks: int = RANKS) -> list[list[list[float]]]:
        """Chance that the guess of rank r of the j-th code behind code p is the very code, given that the codes before it were
        among the guesses: entry ``[p][j - 1][r]``."""
        books = drawn.codes.shape[1]
        table: list[list[list[float]]] = [[] for _ in range(books - 1)]
        if self.heads.config.kind == "lookahead":
            table[0] = [[0.0]] * (books - 1)  # the predictor has not run behind code 0
        reached = torch.ones(len(drawn.codes), dtype=torch.bool)
        for newest, distance, scores in self.drafts(drawn):
            if distance == 1:
                reached = torch.ones_like(reached)
            noise = self.config.rest.temperature / self.soft.temperature * drawn.noise[:, newest + distance - 1]
            best = (scores + noise).topk(min(ranks, scores.shape[-1]), dim=-1).indices
            hits = (best == drawn.codes[:, newest + distance, None]) & reached[:, None]
            table[newest].append((hits.sum(0) / reached.sum().clamp_min(1)).tolist())
            reached = reached & hits.any(-1)
        return table


def train(config: ResidualDrafterConfig) -> Path:
    """Train the heads and save the drafter with its measured acceptance; returns its folder.

    Raises:
        ValueError: If ``config.resume`` meets a checkpoint made with other settings.
    """
    torch.manual_seed(config.seed)
    talker, drawn = collect(config)
    held_out = drawn.rows(slice(0, len(drawn.codes) // 10))
    drawn = drawn.rows(slice(len(drawn.codes) // 10, None))
    sizes = talker.config
    heads = ResidualHeads(
        config.kind, talker.codes_per_step, sizes.predictor_hidden_size, sizes.hidden_size, config.hidden_size,
        target=fingerprint(talker),
    )  # fmt: skip
    trainer = ResidualHeadsTrainer(heads, talker, config)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(drawn.codes), (config.batch_size,), generator=step_generator(config.seed, step))
        return trainer.loss(drawn.rows(rows))

    seconds = fit(trainer, loss_of, config)
    prior = [[[round(s, 3) for s in shares] for shares in row] for row in trainer.acceptance(held_out)]
    drafter = ResidualDrafter(prior=prior, siblings=config.siblings, node_cost=config.node_cost, heads=heads.eval())
    counts = [sum(p.numel() for p in module.parameters()) for module in (heads, talker)]
    report = {
        "minutes": seconds / 60, "parameters": counts[0], "share": counts[0] / counts[1], "acceptance": prior,
        "first": config.first.__dict__, "rest": config.rest.__dict__,
    }  # fmt: skip
    (config.output / "report.json").write_text(json.dumps(report, indent=2))
    logger.info("drafter: %s", report)
    drafter.save_pretrained(config.output / "drafter")
    return config.output / "drafter"
