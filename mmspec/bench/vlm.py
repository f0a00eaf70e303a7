"""The vision-language suite: questions of several tasks, every method on every question in turn, one by one.

Every method runs greedily and at temperature 1; entries of the second kind end in ``-t1``. Answers differ in length where
a peer draws with noise of its own, so all ratios are per token. Wall ratios are of the decoding loop, from the prompt on;
the vision tower runs alike for all methods. ``quality`` has the figures of each task beside those of all:

    TASK_tokens_per_forward, TASK_wall_ratio, TASK_limit_fraction   as for the whole
    limit_fraction_target_only   the limit fraction if the drafter's own forwards counted as lost time
    TASK_accuracy, TASK_cer                                        share of right answers, and of wrong characters
    equal                                                          share of the answers that are plain decoding's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mmspec.bench.answers import correctness
from mmspec.bench.harness import Outcome, Sample, run_interleaved
from mmspec.bench.measure import ForwardClock
from mmspec.bench.methods import BuiltMethod, Method, Parts
from mmspec.bench.report import BenchReport, ForwardTimes, MethodFigures, forward_seconds, median_wall_ratio
from mmspec.bench.vlm_methods import build_vlm_methods
from mmspec.bench.vlm_peers import generate
from mmspec.core.controllers import WIDTHS
from mmspec.core.verify import Guarantee
from mmspec.drafters.base import check_positive
from mmspec.vlm.items import Item
from mmspec.vlm.prompts import processor_inputs, questions_of_prompts
from mmspec.vlm.text import decode as decode_text

if TYPE_CHECKING:
    from mmspec.pipelines.base import DecodeRequest

TEMPERATURES = (0.0, 1.0)
_TIMED_TOKENS = 64  # of an answer behind which forwards are timed, at half of it


@dataclass(frozen=True)
class VlmItem:
    """A question with its seed and temperature."""

    item: Item
    seed: int
    temperature: float = 0.0
    max_new_tokens: int = 96

    def open(self, pipe: Any) -> DecodeRequest:
        """The request by which ``pipe`` decodes this question."""
        [request] = pipe.requests(
            self.item.prompt, list(self.item.images), max_new_tokens=self.max_new_tokens, seed=self.seed,
            temperature=self.temperature,
        )  # fmt: skip
        return request


@dataclass(frozen=True)
class VlmSample(Sample):
    """What one method made of one question."""

    text: str = ""


@dataclass(frozen=True)
class VlmBench:
    """What to run.

    Attributes:
        model: Name of the model, for the report.
        methods: Methods, ``plain`` first.
        items: Questions.
        assistant: The draft model of assisted methods.
        temperatures: At which to run all methods; the first one's entries have no suffix.
        seed: Seed of the first question.
        max_new_tokens: Longest answer.
        left_out: Methods that the checkpoint has no weights for.

    Raises:
        ValueError: If there are no questions or temperatures.
    """

    model: str
    methods: Sequence[Method]
    items: Sequence[Item]
    assistant: Any
    temperatures: Sequence[float] = TEMPERATURES
    seed: int = 0
    max_new_tokens: int = 96
    left_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_positive("max_new_tokens", self.max_new_tokens)
        if not self.items or not self.temperatures:
            raise ValueError("There is nothing to ask; give at least one question and one temperature.")

    @property
    def tasks(self) -> list[str]:
        """Tasks in the order of the questions."""
        return list(dict.fromkeys(item.task for item in self.items))

    def questions(self, temperature: float) -> list[VlmItem]:
        """The questions at one temperature."""
        return [
            VlmItem(item, self.seed + number, temperature, self.max_new_tokens)
            for number, item in enumerate(self.items)
        ]


def first_of_each(items: Sequence[Item], count: int | None) -> list[Item]:
    """At most ``count`` questions of each task, the tasks in turn."""
    if count is not None:
        check_positive("items", count)
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    columns = [same[:count] for same in by_task.values()]
    longest = max(map(len, columns))
    return [same[place] for place in range(longest) for same in columns if place < len(same)]


def decode(pipe: Any, built: BuiltMethod, question: VlmItem) -> VlmSample:
    """Answer one question by one method of ours."""
    call = partial(
        pipe, question.item.prompt, list(question.item.images), max_new_tokens=question.max_new_tokens,
        seed=question.seed, temperature=question.temperature,
    )  # fmt: skip
    output = built.run(pipe, call)
    return VlmSample(torch.tensor(output.tokens), output.stats, output.texts[0])


def decode_by_peer(pipe: Any, name: str, assistant: Any, question: VlmItem) -> VlmSample:
    """Answer one question by transformers."""
    [asked] = questions_of_prompts(pipe.processor, [question.item.prompt], [list(question.item.images)])
    inputs = {key: pipe.adapter.place(value) for key, value in processor_inputs(pipe.processor, asked).items()}
    tokens, stats = generate(
        name, pipe.model, assistant, inputs, question.max_new_tokens, pipe.stop_tokens(), question.temperature,
        question.seed,
    )  # fmt: skip
    return VlmSample(torch.tensor([tokens]), stats, decode_text(pipe.processor.tokenizer, tokens))


def run_vlm_bench(pipe: Any, bench: VlmBench, on_item: Callable[[int], Any] | None = None) -> BenchReport:
    """Run the suite; the report's ``unequal`` names methods that broke their promise."""
    pipe.set_progress_bar_config(disable=True)
    saved = Parts.of(pipe)
    try:
        return _run(pipe, bench, on_item)
    finally:
        saved.put(pipe)


def _run(pipe: Any, bench: VlmBench, on_item: Callable[[int], Any] | None) -> BenchReport:
    built = build_vlm_methods(bench.methods, pipe, bench.assistant)
    runs: dict[str, Callable[[VlmItem], VlmSample]] = {
        name: partial(decode_by_peer, pipe, name, bench.assistant)
        if method.method.peer
        else partial(decode, pipe, method)
        for name, method in built.items()
    }
    clocks = task_clocks(pipe, bench, built)
    entries: list[MethodFigures] = []
    settings = _settings(pipe, bench, built)
    for number, temperature in enumerate(bench.temperatures):
        done = number * len(bench.items)

        def after(count: int, done: int = done) -> None:
            clocks[bench.items[count - 1].task].turn()
            if on_item is not None:
                on_item(done + count)

        outcomes = run_interleaved(runs, bench.questions(temperature), after)
        times = {task: clock.times() for task, clock in clocks.items()}
        settings["forward_ms"] = milliseconds(times)
        suffix = f"-t{temperature:g}" if number else ""
        for name, method in built.items():
            entry = figures(method.method, outcomes[name], outcomes["plain"], bench.items, times, temperature)
            entries.append(replace(entry, name=name + suffix))
            settings["overhead_ms"][name + suffix] = outcomes[name].overhead()
            settings["wall_ratio_median"][name + suffix] = median_wall_ratio(outcomes[name], outcomes["plain"])
            settings["acceptance_by_depth"][name + suffix] = outcomes[name].stats.acceptance_by_depth
    return BenchReport("vlm", pipe.device.type, settings, entries)


def task_clocks(pipe: Any, bench: VlmBench, built: dict[str, BuiltMethod]) -> dict[str, ForwardClock]:
    """A clock of the target's forwards on the first question of each task."""
    widest = max((method.drafter.max_nodes for method in built.values() if method.drafter), default=1)
    widths = sorted({width for width in (*WIDTHS, widest) if width <= min(widest, _TIMED_TOKENS)})
    first = {item.task: item for item in reversed(bench.items)}
    return {
        task: ForwardClock(pipe, VlmItem(first[task], bench.seed, max_new_tokens=_TIMED_TOKENS), widths)
        for task in bench.tasks
    }


def figures(
    method: Method,
    outcome: Outcome,
    plain: Outcome,
    items: Sequence[Item],
    times: dict[str, ForwardTimes],
    temperature: float,
) -> MethodFigures:
    """The entry of one method beside plain decoding of the same questions."""
    stats = outcome.stats
    # a peer's greedy answers are held against ours too, but a near-tie that falls the other way is not its fault
    exact = stats.guarantee is Guarantee.SAME_TOKENS
    quality: dict[str, float] = {"temperature": temperature, "equal": _share_equal(outcome, plain)}
    parts = []
    for task, costs in times.items():
        at = [place for place, item in enumerate(items) if item.task == task]
        part, base = _at(outcome, at), _at(plain, at)
        wall, limit = _ratio(part, base), _limit([(part, base, costs)])
        own = {
            "tokens_per_forward": part.stats.tokens / part.forwards,
            "wall_ratio": wall,
            "limit_fraction": wall / limit,
        }
        own |= _correctness(part, [items[place] for place in at])
        quality |= {f"{task}_{name}": value for name, value in own.items()}
        parts.append((part, base, costs))
    wall = _ratio(outcome, plain)
    quality["limit_fraction_target_only"] = wall / _limit(parts, drafter=False)
    return MethodFigures(
        name=method.name, default=method.default, peer=method.peer, guarantee=stats.guarantee.value,
        items=len(outcome.samples), tokens_equal=outcome.equals(plain) and _texts(outcome) == _texts(plain) if exact else None,
        forwards=outcome.forwards,
        forwards_ratio=(plain.forwards / plain.stats.tokens) / (outcome.forwards / stats.tokens),
        tokens_per_forward=stats.tokens / outcome.forwards, wall_ratio=wall, model_share=stats.model_share,
        peak_memory_ratio=None, limit_fraction=wall / _limit(parts), deviation=None, quality=quality,
    )  # fmt: skip


def _at(outcome: Outcome, places: Sequence[int]) -> Outcome:
    return Outcome(outcome.name, [outcome.samples[place] for place in places])


def _texts(outcome: Outcome) -> list[str]:
    return [sample.text for sample in outcome.samples if isinstance(sample, VlmSample)]


def _share_equal(outcome: Outcome, plain: Outcome) -> float:
    pairs = list(zip(_texts(outcome), _texts(plain), strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)


def _ratio(outcome: Outcome, plain: Outcome) -> float:
    """Seconds a token of plain decoding, divided by the method's."""
    return (plain.seconds / plain.stats.tokens) / (outcome.seconds / outcome.stats.tokens)


def _limit(parts: Sequence[tuple[Outcome, Outcome, ForwardTimes]], drafter: bool = True) -> float:
    """The ratio that forwards alone would give, those of a drafter's network included or not."""
    ours = sum(forward_seconds(outcome, times, drafter) for outcome, _, times in parts)
    theirs = sum(forward_seconds(plain, times) for _, plain, times in parts)
    tokens = sum(outcome.stats.tokens for outcome, _, _ in parts)
    plain_tokens = sum(plain.stats.tokens for _, plain, _ in parts)
    return (theirs / plain_tokens) / (ours / tokens)


def _correctness(outcome: Outcome, items: Sequence[Item]) -> dict[str, float]:
    """Shares of right answers among those that have one."""
    pairs = [(text, item.answer) for text, item in zip(_texts(outcome), items, strict=True) if item.answer is not None]
    return correctness([text for text, _ in pairs], [answer for _, answer in pairs]) if pairs else {}


def milliseconds(times: dict[str, ForwardTimes]) -> dict[str, dict[str, float]]:
    """Of each task, what a prefill takes and forwards by width."""
    return {
        task: {"prefill": 1e3 * t.prefill, **{str(w): 1e3 * s for w, s in t.by_width.items()}}
        for task, t in times.items()
    }


def _settings(pipe: Any, bench: VlmBench, built: dict[str, BuiltMethod]) -> dict[str, Any]:
    counts = {task: sum(item.task == task for item in bench.items) for task in bench.tasks}
    sizes = {
        name: sum(weight.numel() for weight in method.drafter.parameters())
        for name, method in built.items()
        if isinstance(method.drafter, torch.nn.Module)
    }
    return {
        "model": bench.model, "items": len(bench.items), "tasks": counts, "seed": bench.seed,
        "temperatures": list(bench.temperatures), "max_new_tokens": bench.max_new_tokens,
        "dtype": str(pipe.dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
        "parameters": sum(weight.numel() for weight in pipe.model.parameters()), "drafter_parameters": sizes,
        "left_out": list(bench.left_out),
        "overhead_ms": {}, "wall_ratio_median": {}, "acceptance_by_depth": {},
    }  # fmt: skip
