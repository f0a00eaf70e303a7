"""Peers of the vision-language suite: transformers' own generation on the same weights, batch 1.

The clock runs from the first forward of a language model on, so that vision towers and the preparation of inputs, which
are the same for all, stay out, as they do for ours.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.utils import logging

from mmspec.core.stats import DecodeStats, RowStats
from mmspec.core.verify import Guarantee

PEERS: dict[str, dict[str, Any]] = {
    "transformers": {},
    "transformers-prompt-lookup": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
    "transformers-assisted": {},
}
"""Name -> options of ``generate``. Prompt lookup has the lengths of our n-gram drafter; how long assisted drafts are is
left to transformers, which ends them early where the assistant is unsure."""


def lower_layers(network: Any, count: int = 1) -> Any:
    """A draft model that is ``network`` without the layers above the first ``count`` of its language model."""
    draft = copy.deepcopy(network)
    draft.config.get_text_config().num_hidden_layers = count
    decoder = draft.get_decoder()
    decoder.layers = decoder.layers[:count]
    return draft.eval()


@dataclass
class _Clock:
    """What hooks see: when a language model began, and how many tokens each forward of the target had."""

    began: float | None = None
    inside: float = 0.0
    widths: list[int] = field(default_factory=list)

    def start(self, *_: Any) -> None:
        if self.began is None:
            self.began = time.perf_counter()

    @contextmanager
    def watching(self, target: Any, assistant: Any) -> Iterator[None]:
        """Watch the decoders of the models."""
        entered = 0.0

        def before(_: Any, args: Any, named: dict[str, Any]) -> None:
            nonlocal entered
            self.start()
            read = named["input_ids"] if named.get("inputs_embeds") is None else named["inputs_embeds"]
            self.widths.append(read.shape[1])
            entered = time.perf_counter()

        def after(*_: Any) -> None:
            self.inside += time.perf_counter() - entered

        decoder = target.get_decoder()
        hooks = [
            decoder.register_forward_pre_hook(before, with_kwargs=True),
            decoder.register_forward_hook(after),
        ]
        if assistant is not None:
            hooks.append(assistant.get_decoder().register_forward_pre_hook(self.start))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@torch.no_grad()
def generate(
    name: str,
    network: Any,
    assistant: Any,
    inputs: dict[str, Any],
    max_new_tokens: int,
    stop_tokens: list[int],
    temperature: float,
    seed: int,
) -> tuple[list[int], DecodeStats]:
    """Answer one prompt by the peer ``name``: new tokens, and stats as our loop keeps them.

    Args:
        assistant: The draft model of ``transformers-assisted``.
        inputs: What the processor made of the prompt.
    """
    helper = assistant if name == "transformers-assisted" else None
    options = PEERS[name] if helper is None else {"assistant_model": helper}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    clock = _Clock()
    with clock.watching(network, helper), _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = network.generate(
            **inputs, **options, **sampling, max_new_tokens=max_new_tokens, eos_token_id=stop_tokens or None
        )
        if network.device.type == "cuda":
            torch.cuda.synchronize(network.device)
        ended = time.perf_counter()
    assert clock.began is not None
    tokens: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
    stats = DecodeStats(
        method=name, guarantee=Guarantee.SAME_LAW, seeds=[seed], forwards=len(clock.widths),
        rows=[RowStats(tokens=len(tokens), rounds=len(clock.widths) - 1)],
        seconds={"total": ended - clock.began, "model": clock.inside}, widths=dict(Counter(clock.widths[1:])),
    )  # fmt: skip
    return tokens, stats


@contextmanager
def _quiet() -> Iterator[None]:
    """Assisted generation warns about its own defaults at every round."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
