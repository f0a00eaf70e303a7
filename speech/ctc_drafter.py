"""The transcript of a CTC head as the draft of a language model (Saon et al., 2026, CTC-drafted speech recognition).

The whole hypothesis goes with the prompt, so that one forward reads the audio and verifies the text. Where the language
model leaves the hypothesis, ``on_fail`` says how to go on: plainly, from scratch, or with the rest of the hypothesis
found again behind what is written (see :mod:`mmspec.speech.hypotheses`). With an exact rule every variant returns what
plain decoding returns.

Symbols: B rows, N nodes of a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor

from mmspec.core.controllers import Controller, CostCurve, FixedController
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.drafting import DraftSession
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import Drafter, DraftSetup, check_positive
from mmspec.speech.char_ngram import CharacterNGram
from mmspec.speech.ctc import Posterior
from mmspec.speech.ctc_models import CTCModel
from mmspec.speech.gate import EntropyGate
from mmspec.speech.guided import make_hypothesis
from mmspec.speech.hypotheses import Hypothesis
from mmspec.speech.text import TextCodec
from mmspec.speech.vocabulary import CTCVocabulary

ON_FAIL = ("restart", "resume", "resync")


class CTCDrafter(SchedulerMixin, ConfigMixin, Drafter):
    """Draft transcripts with the recogniser's own CTC head, or with any ``*ForCTC`` model of transformers.

    Args:
        on_fail: ``resync`` drafts the rest of the hypothesis again, ``resume`` goes on plainly, ``restart`` decodes
            the row anew without the verified part, as the released recogniser does.
        entropy_threshold: Largest aggregated entropy, in nats, at which a hypothesis is final without the language
            model; 0 closes this gate. Above 0 the output is no longer that of plain decoding.
        aggregate, normalised, empty, silence: See :class:`mmspec.speech.gate.EntropyGate`.
        num_draft_tokens: Most draft tokens of a resynchronising round, alternatives included.
        word_rollback: Resume relaxed rules at the start of the word that failed.
        language_weight: What ``language`` counts.
        language: A character model that tells likely spellings from unlikely ones; without it drafts are what was heard.
        model: A CTC model of its own; ``None`` uses the recogniser's head.
        processor: Its processor, or its feature extractor together with ``tokenizer``.
        tokenizer: Meaning of its labels, where ``processor`` does not hold it.

    Raises:
        TypeError, ValueError: For values outside their range.
    """

    config_name = "drafter_config.json"
    has_compatibles = False
    ignore_for_config = ["language", "model", "processor", "tokenizer"]  # noqa: RUF012 - diffusers reads a list
    law = DraftLaw.DETERMINISTIC

    @register_to_config
    def __init__(
        self,
        on_fail: str = "resync",
        entropy_threshold: float = 0.0,
        aggregate: str = "max",
        normalised: bool = False,
        empty: str = "accept",
        silence: float = 0.99,
        num_draft_tokens: int = 16,
        word_rollback: bool = True,
        language_weight: float = 1.0,
        *,
        language: CharacterNGram | None = None,
        model: Any = None,
        processor: Any = None,
        tokenizer: Any = None,
    ) -> None:
        if on_fail not in ON_FAIL:
            raise ValueError(f"Unknown `on_fail` {on_fail!r}; choose one of {', '.join(ON_FAIL)}.")
        check_positive("num_draft_tokens", num_draft_tokens)
        self.gate = EntropyGate(entropy_threshold, aggregate, normalised, empty=empty, silence=silence)
        self.language = language
        self.ctc = None if model is None else CTCModel(model, processor, tokenizer)

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the settings, and character and CTC model in the sub-folders ``language`` and ``model``."""
        super().save_pretrained(save_directory, **kwargs)
        if self.language is not None:
            self.language.save_pretrained(Path(save_directory) / "language")
        if self.ctc is not None:
            self.ctc.save_pretrained(Path(save_directory) / "model")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> CTCDrafter:
        """Load settings and models from a local folder written by :meth:`save_pretrained`."""
        folder = Path(pretrained_model_name_or_path) / (kwargs.pop("subfolder", None) or "")
        drafter = super().from_pretrained(folder)
        if (folder / "language").is_dir():
            drafter.language = CharacterNGram.from_pretrained(folder / "language")
        if (folder / "model").is_dir():
            drafter.ctc = CTCModel.from_pretrained(folder / "model")
        return drafter

    def to(self, *args: Any, **kwargs: Any) -> CTCDrafter:
        if self.ctc is not None:
            self.ctc.model.to(*args, **kwargs)
        return self

    @property
    def max_nodes(self) -> int:
        return self.config.num_draft_tokens + 1

    def controller(self, costs: CostCurve) -> Controller:
        return FixedController(self.max_nodes)

    def session(self, setup: DraftSetup) -> DraftSession:
        raise ValueError("CTCDrafter drafts transcripts of audio; use it in a SpeechRecognitionPipeline.")

    def hypothesis(self, posterior: Posterior, vocabulary: CTCVocabulary) -> Hypothesis:
        """What this drafter reads from a posterior."""
        return make_hypothesis(posterior, vocabulary, self.language, self.config.language_weight)

    def bind(self, rows: Sequence[Hypothesis], codec: TextCodec, stop_token: int | None) -> HypothesisDrafter:
        """The drafter of one call, which knows the hypotheses of its rows.

        Args:
            rows: A hypothesis for each row.
            codec: Text to tokens of the verifier.
            stop_token: Ends a draft for rules that judge it; ``None`` leaves the end to the verifier.
        """
        return HypothesisDrafter(self, list(rows), codec, stop_token)


@dataclass
class HypothesisDrafter(Drafter):
    """A :class:`CTCDrafter` with the hypotheses of one call; opened once."""

    settings: CTCDrafter
    rows: list[Hypothesis]
    codec: TextCodec
    stop_token: int | None
    law = DraftLaw.DETERMINISTIC

    def __post_init__(self) -> None:
        self.ends = [] if self.stop_token is None else [self.stop_token]
        self.first = [self.codec.draft(row, []) + self.ends for row in self.rows]

    @property
    def max_nodes(self) -> int:
        return max(self.settings.max_nodes, 1 + max((len(ids) for ids in self.first), default=0))

    def nodes_within(self, budget: int) -> int:
        return self.max_nodes

    def controller(self, costs: CostCurve) -> Controller:
        return self.settings.controller(costs)

    def session(self, setup: DraftSetup) -> CTCSession:
        return CTCSession(self, setup)


class CTCSession:
    """Drafts the hypothesis with the prompt, then what is left of it behind the text written so far.

    The text is read on the host, which costs a synchronisation a round.
    """

    forwards = 0

    def __init__(self, drafter: HypothesisDrafter, setup: DraftSetup) -> None:
        self.first, self.rows, self.codec = drafter.first, list(drafter.rows), drafter.codec
        self.ends = drafter.ends
        self.resync = drafter.settings.config.on_fail == "resync"
        self.vocab_size = setup.vocab_size
        self.num_draft_tokens = drafter.settings.config.num_draft_tokens
        self.misses = [0] * len(self.rows)

    def propose_first(self, context: RoundContext, width: int) -> Draft:
        """The hypotheses, to be verified with the prompt."""
        return self._chains(context.root, self.first, width)

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        pass

    def propose(self, context: RoundContext, width: int) -> Draft:
        if not self.resync:
            return Draft(context.root[:, None], DraftLaw.DETERMINISTIC)
        lengths = context.generated.tolist()
        written = [row[:length] for row, length in zip(context.tokens.tolist(), lengths, strict=True)]
        tries = []
        for place, (row, tokens) in enumerate(zip(self.rows, written, strict=True)):
            # a row whose drafts keep failing drafts fewer tokens: a wide forward costs more. `width` is not asked: it
            # follows the rows beside this one, and what is drafted may decide what a relaxed rule keeps
            limit = max(1, self.num_draft_tokens >> max(0, self.misses[place] - 1))
            branches = self.codec.branches(row, tokens, limit) or [[]]
            ends = self.ends if len(branches) == 1 else []
            tries.append(_trie([_known([*branch, *ends], self.vocab_size) for branch in branches], limit))
        return self._trees(context.root, tries)

    def _chains(self, root: Tensor, chains: Sequence[Sequence[int]], width: int) -> Draft:
        """A draft (B, N) of the tokens of each row, cut at ``width`` nodes and at the first that the verifier lacks."""
        return self._trees(root, [_trie([_known(chain, self.vocab_size)], width - 1) for chain in chains])

    @staticmethod
    def _trees(root: Tensor, tries: Sequence[tuple[list[int], list[int]]]) -> Draft:
        """A draft (B, N) of the nodes of each row, ``(tokens, parents)`` behind the root; a chain where all are."""
        size = max(len(tokens) for tokens, _ in tries)
        tokens = torch.tensor([row + [0] * (size - len(row)) for row, _ in tries], dtype=torch.long).reshape(
            len(tries), size
        )
        lengths = torch.tensor([len(row) for row, _ in tries])
        valid = (torch.arange(size + 1) <= lengths[:, None]).to(root.device)
        joined = torch.cat([root[:, None], tokens.to(root.device)], dim=1)
        if all(parents == list(range(len(parents))) for _, parents in tries):
            return Draft(joined, DraftLaw.DETERMINISTIC, valid=valid)
        padded = [[0, *parents, *[0] * (size - len(parents))] for _, parents in tries]
        return Draft(joined, DraftLaw.DETERMINISTIC, torch.tensor(padded, device=root.device), valid)

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        assert draft.valid is not None or draft.num_nodes == 1
        if draft.valid is None:
            return
        outcomes = torch.stack([draft.valid[:, 1:].sum(-1), verdict.num_accepted]).tolist()
        for place, (drafted, accepted) in enumerate(zip(*outcomes, strict=True)):
            if drafted:
                self.misses[place] = 0 if accepted else min(self.misses[place] + 1, 4)

    def select_rows(self, rows: Tensor) -> None:
        kept = rows.tolist()
        self.rows = [self.rows[row] for row in kept]
        self.misses = [self.misses[row] for row in kept]


def _trie(chains: Sequence[Sequence[int]], size: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of the common tree of ``chains``, at most ``size`` nodes behind the root, which is node 0."""
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[tuple[int, int], int] = {}
    for chain in chains:
        node = 0
        for token in chain:
            child = places.get((node, token))
            if child is None:
                if len(tokens) == size:
                    break
                tokens.append(token)
                parents.append(node)
                child = places[node, token] = len(tokens)
            node = child
    return tokens, parents


def _known(chain: Sequence[int], vocab_size: int) -> Sequence[int]:
    unknown = next((place for place, token in enumerate(chain) if not 0 <= token < vocab_size), len(chain))
    return chain[:unknown]
