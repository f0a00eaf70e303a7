"""Compat mode equals the authors' implementation on its recorded cases: chosen and drawn trees, sampled and greedy.

``tests/data`` holds two cases of each kind; all 96 are compared where the reference outputs lie beside the checkout.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance.base import TokenVectors
from mmspec.acceptance.recursive import walk_tree
from mmspec.acceptance.relaxed import Exact, Relaxation
from mmspec.core.draft import Draft, DraftLaw
from mmspec.core.verify import Guarantee
from mmspec.image.codes import CodeLookup
from mmspec.image.lantern import BoundLantern, Neighbourhood, Neighbours
from mmspec.image.neighbours import nearest_codes

DATA = Path(__file__).resolve().parent.parent / "data" / "lantern_cases.json"
KINDS = [
    ("dynamic", "exact"), ("dynamic", "delta"), ("dynamic", "lambda"), ("dynamic", "greedy"),
    ("dynamic", "greedy_delta"), ("static", "exact"), ("static", "delta"), ("static", "lambda"),
]  # fmt: skip
VOCAB = 12


class Tree:
    """The recorded case as a draft: ``nodes`` maps the tokens of a path from the root to its node."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.nodes: dict[tuple[int, ...], int] = {}
        parent, tokens = [], []
        logits, log_q = [], []
        for path, rows in zip(case["candidates"], self._rows(), strict=True):
            for depth, row in enumerate(rows):
                past = tuple(path[: depth + 1])
                if past not in self.nodes:
                    self.nodes[past] = len(tokens)
                    tokens.append(past[-1])
                    parent.append(self.nodes[past[:-1]] if depth else 0)
                    logits.append(row)
                    log_q.append(self._law(past))
        chosen = case["kind"] == "dynamic"
        self.logits = torch.tensor([logits])
        self.draft = Draft(
            torch.tensor([tokens]), DraftLaw.DETERMINISTIC if chosen else DraftLaw.WITHOUT_REPLACEMENT,
            parent=torch.tensor([parent]), log_q=None if chosen else torch.tensor([log_q]).log(),
        )  # fmt: skip
        self.past = {node: past for past, node in self.nodes.items()}

    def _rows(self) -> list[list[list[float]]]:
        """Logits along each path."""
        case = self.case
        lengths = [sum(token >= 0 for token in path) for path in case["candidates"]]
        if case["kind"] == "dynamic":
            return [rows[:length] for rows, length in zip(case["logits"], lengths, strict=True)]
        nodes = torch.tensor(case["node_logits"]).reshape(-1, VOCAB).tolist()
        retrieve = case["retrieve_indices"]
        return [[nodes[i] for i in path[:length]] for path, length in zip(retrieve, lengths, strict=True)]

    def _law(self, past: tuple[int, ...]) -> list[float]:
        """Law of the children of the node with the tokens ``past``; the record lists them by level and rank."""
        if self.case["kind"] == "dynamic":
            return [0.0] * VOCAB
        levels: list[list[tuple[int, ...]]] = []
        for ranks in map(tuple, self.case["tree"]):
            while len(levels) < len(ranks):
                levels.append([])
            if ranks[:-1] not in levels[len(ranks) - 1]:
                levels[len(ranks) - 1].append(ranks[:-1])
        ranks: tuple[int, ...] = ()
        for depth, token in enumerate(past[1:]):
            drawn = self.case["draft_tokens"][depth][levels[depth].index(ranks)]
            ranks = (*ranks, drawn.index(token))
        if len(ranks) >= len(levels) or ranks not in levels[len(ranks)]:
            return [0.0] * VOCAB  # a leaf
        return self.case["draft_probs"][len(ranks)][levels[len(ranks)].index(ranks)]

    def uniforms(self) -> tuple[Tensor, int]:
        """The recorded uniforms at the nodes that the reference tested, in its order, and how many it used."""
        accepted = tuple(self.case["candidates"][self.case["best_candidate"]][: self.case["accept_length"] + 1])
        uniform = torch.full_like(self.draft.tokens, 0.5, dtype=torch.double)
        node, used = 0, 0
        while node >= 0:
            at, node = node, -1
            for child in [c for c in self.draft.children[0, at].tolist() if c >= 0]:
                uniform[0, child] = self.case["rand"][used]
                used += 1
                if self.past[child] == accepted[: len(self.past[child])]:
                    node = child
                    break
        return uniform, used

    def check(self, node: int, law: Tensor) -> None:
        case = self.case
        assert self.past[node] == tuple(case["candidates"][case["best_candidate"]][: case["accept_length"] + 1])
        torch.testing.assert_close(law, torch.tensor(case["next_dist"]), atol=1e-5, rtol=0)


def relaxation(case: dict[str, Any], stored: dict[str, Any]) -> Relaxation:
    vectors = TokenVectors(torch.tensor(stored["codebook"]))
    table = nearest_codes(vectors.vectors, VOCAB - 1)
    assert table.tolist() == stored["nearest"]
    near = Neighbours(CodeLookup(vectors, torch.device("cpu")), table[:, : case["k"] + 1], case["k"])
    mode = case["mode"]
    if mode == "exact":
        return Exact()
    delta = {"delta": case["delta"], "greedy_delta": case["delta"], "greedy": 0.0}.get(mode)
    lam = case["delta"] if mode == "lambda" else None
    return Neighbourhood(near, delta, lam, "lantern_compat", chosen=case["kind"] == "dynamic")


def compare(stored: dict[str, Any], kind: str, mode: str, count: int) -> None:
    cases = [case for case in stored["cases"] if (case["kind"], case["mode"]) == (kind, mode)]
    assert len(cases) == count
    for case in cases:
        tree = Tree(case)
        rule = relaxation(case, stored)
        if isinstance(rule, Neighbourhood) and mode.startswith("greedy"):
            verdict = BoundLantern(rule, Guarantee.HEURISTIC, None)._greedy(tree.draft, tree.logits)
            assert verdict.path is not None
            node = int(verdict.path[0, -1])
            tree.check(node, tree.logits[0, node].softmax(-1))
            continue
        uniform, used = tree.uniforms()
        assert used == case["rand_used"]
        walk = walk_tree(tree.draft, tree.logits.softmax(-1), uniform, rule)
        tree.check(int(walk.node), walk.weights[0] / walk.weights.sum())


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_committed_cases_equal_the_reference(kind: str, mode: str) -> None:
    compare(json.loads(DATA.read_text()), kind, mode, 2)


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_all_cases_equal_the_reference(golden: Path, kind: str, mode: str) -> None:
    compare(json.loads((golden / "lantern" / "acceptance.json").read_text()), kind, mode, 12)


def test_the_comparison_can_fail() -> None:
    """The best residual differs from the reference's in some relaxed case, and relaxation itself changes verdicts."""
    stored = json.loads(DATA.read_text())
    assert Counter(case["mode"] for case in stored["cases"])["delta"] == 4
    failures = 0
    for case in stored["cases"]:
        if case["mode"] not in ("delta", "lambda"):
            continue
        tree = Tree(case)
        walk = walk_tree(tree.draft, tree.logits.softmax(-1), tree.uniforms()[0], Exact())
        law = walk.weights[0] / walk.weights.sum()
        failures += not torch.allclose(law, torch.tensor(case["next_dist"]), atol=1e-3)
    assert failures > 0
