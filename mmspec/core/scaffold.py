"""A template as a law over tokens, and drafts that follow it: forced tokens cost no decision.

After each path only tokens are allowed whose text the template takes. Where its text is fixed, one token alone is: the
longest one that the text begins with; so the law there is one-hot, for plain and for speculative decoding, and a draft
knows it. A complete text is followed by a stop token.

Symbols: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.drafting import DraftSession
from mmspec.core.path_laws import PathLawSession
from mmspec.core.target import TargetOutput
from mmspec.core.templates import State, Template
from mmspec.core.trees import TokenTree, joined_trees
from mmspec.core.verify import RoundContext, Verdict


class Scaffold:
    """The law of a template over the tokens of a model. It keeps what it computed, for all calls.

    Args:
        template: What texts look like.
        texts: Text of every token (V,), ``None`` for tokens without one of their own.
        stop_tokens: What may follow a complete text, at least one.

    Raises:
        ValueError: If there is no stop token, or no token for a character of the template.
    """

    def __init__(self, template: Template, texts: Sequence[str | None], stop_tokens: Sequence[int]) -> None:
        if not stop_tokens:
            raise ValueError("A text of a fixed form needs a stop token to end it; give `stop_tokens`.")
        self.template, self.texts, self.stop_tokens = template, texts, tuple(stop_tokens)
        self._token_of = {text: token for token, text in reversed(list(enumerate(texts))) if text}
        self._longest = max(map(len, self._token_of), default=0)
        self._by_first: dict[str, list[int]] = {}
        for token, text in enumerate(texts):
            if text:
                self._by_first.setdefault(text[0], []).append(token)
        self._known: dict[State, tuple[int, Tensor]] = {}
        self._law(template.start)

    def advance(self, state: State | None, token: int) -> State | None:
        """The state behind ``token``; ``None`` once a token was not allowed, or a stop token came."""
        text = self.texts[token]
        if state is None or not text:
            return None
        for character in text:
            state = self.template.step(state, character)
            if state is None:
                return None
        return state

    def forced(self, state: State | None) -> int:
        """The only token that may follow, -1 where there is a choice."""
        return -1 if state is None else self._law(state)[0]

    def allowed(self, state: State | None) -> Tensor:
        """Which tokens may follow (V,); all, where it does not matter any more."""
        if state is None:
            return torch.ones(len(self.texts), dtype=torch.bool)
        return self._law(state)[1]

    def _law(self, state: State) -> tuple[int, Tensor]:
        if state not in self._known:
            tokens = self._tokens(state)
            if not tokens:
                missing = self.template.fixed(state)
                raise ValueError(f"No token of the model writes what must follow: {missing!r}.")
            allowed = torch.zeros(len(self.texts), dtype=torch.bool)
            allowed[tokens] = True
            self._known[state] = tokens[0] if len(tokens) == 1 else -1, allowed
        return self._known[state]

    def _tokens(self, state: State) -> list[int]:
        if self.template.done(state):
            return list(self.stop_tokens)
        if fixed := self.template.fixed(state):
            sizes = range(min(self._longest, len(fixed)), 0, -1)
            return next(([self._token_of[fixed[:size]]] for size in sizes if fixed[:size] in self._token_of), [])
        first = [character for character in self._by_first if self.template.step(state, character) is not None]
        return [
            token
            for character in first
            for token in self._by_first[character]
            if self.advance(state, token) is not None
        ]

    def open(self, prompts: Sequence[Sequence[int]]) -> ScaffoldLaw:
        """A session over as many rows as there are ``prompts``, which do not matter."""
        return ScaffoldLaw(self, len(prompts))


class ScaffoldLaw(PathLawSession):
    """The states of the rows of a call, up to the token before the newest."""

    def __init__(self, scaffold: Scaffold, rows: int) -> None:
        self.scaffold = scaffold
        self.states: list[State | None] = [scaffold.template.start] * rows

    def change(self, logits: Tensor, draft: Draft | None) -> Tensor:
        if draft is None:
            states = [[state] for state in self.states]
        else:
            states = [self._along(draft, row) for row in range(len(self.states))]
        allowed = torch.stack([torch.stack([self.scaffold.allowed(state) for state in row]) for row in states])
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def _along(self, draft: Draft, row: int) -> list[State | None]:
        """The state behind each node of a row."""
        states: list[State | None] = []
        tokens, parents = draft.tokens[row].tolist(), draft.parents[row].tolist()
        for node, (token, above) in enumerate(zip(tokens, parents, strict=True)):
            states.append(self.scaffold.advance(states[above] if node else self.states[row], token))
        return states

    def commit(self, tokens: Sequence[Sequence[int]]) -> None:
        for row, new in enumerate(tokens):
            for token in new:
                self.states[row] = self.scaffold.advance(self.states[row], token)

    def select_rows(self, rows: Sequence[int]) -> None:
        self.states = [self.states[row] for row in rows]


class ScaffoldSession:
    """A drafter's session whose drafts follow a template: forced tokens are in their places, tokens that are not allowed
    go with all below them, and what is free of the width goes on where tokens are forced.

    Args:
        session: Of a drafter that only reads the outcome of a draft, not its own part in it.
        law: The states of the same rows.
    """

    def __init__(self, session: DraftSession, law: ScaffoldLaw) -> None:
        self.session, self.law = session, law

    @property
    def forwards(self) -> int:
        return self.session.forwards

    def start(self, context: RoundContext, output: TargetOutput) -> None:
        self.session.start(context, output)

    def propose(self, context: RoundContext, width: int) -> Draft:
        draft = self.session.propose(context, width)
        trees = [self._followed(draft, row, width) for row in range(len(draft.tokens))]
        return joined_trees(trees, draft.tokens.device)

    def _followed(self, draft: Draft, row: int, width: int) -> TokenTree:
        scaffold = self.law.scaffold
        tokens, parents = draft.tokens[row].tolist(), draft.parents[row].tolist()
        valid = [True] * len(tokens) if draft.valid is None else draft.valid[row].tolist()
        tree = TokenTree(tokens[0])
        states = [scaffold.advance(self.law.states[row], tokens[0])]
        place = {0: 0}  # node of the draft -> node of the tree
        for node in range(1, len(tokens)):
            above = place.get(parents[node])
            if not valid[node] or above is None or states[above] is None:
                continue
            forced = scaffold.forced(states[above])
            token = tokens[node] if forced < 0 else forced
            if not bool(scaffold.allowed(states[above])[token]):
                continue
            place[node] = self._add(tree, states, above, token)
        for leaf in range(width):  # nodes that are added here are leaves in their turn
            if leaf == len(tree.tokens) or len(tree.tokens) >= width:
                break
            if (forced := scaffold.forced(states[leaf])) >= 0:
                self._add(tree, states, leaf, forced)
        return tree

    def _add(self, tree: TokenTree, states: list[State | None], above: int, token: int) -> int:
        node = tree.add(above, token)
        if node == len(states):
            states.append(self.law.scaffold.advance(states[above], token))
        return node

    def observe(self, context: RoundContext, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        self.session.observe(context, draft, output, verdict)

    def select_rows(self, rows: Tensor) -> None:
        self.session.select_rows(rows)
