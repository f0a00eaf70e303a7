"""Spatial heads only open the window: whatever they guess, the output is plain decoding's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.draft import Draft
from mmspec.core.guidance import Guidance
from mmspec.core.noise import RowNoise, Stream
from mmspec.core.sampling import SamplingParams, draw_token
from mmspec.core.target import TargetOutput
from mmspec.core.verify import RoundContext, Verdict
from mmspec.drafters.base import DraftSetup
from mmspec.drafters.ngram import NGramDrafter
from mmspec.drafters.spatial import SpatialDrafter
from mmspec.drafters.spatial_session import SpatialSession
from mmspec.pipelines.llamagen import LlamaGenPipeline
from tests.oracles.decode import decode, seeds
from tests.oracles.tiny import tiny_pipeline
from tests.oracles.toy import TableTarget, enumerate_law, random_table, string_numbers, z_score

SHORT, LONG = "a cat", "a very old red house on the"
PROMPTS = [SHORT, LONG, "blue moon"]
V, M, D, ROW = 3, 4, 6, 2


def heads(seed: int = 0, std: float = 0.5, **changes: Any) -> SpatialDrafter:
    """Random heads for the tiny transformer, 3 x 5 cells."""
    settings = {
        "vocab_size": 24, "hidden_size": 32, "row_length": 5, "horizontal": 3, "vertical": 2, "intermediate_size": 16,
        "window": 6, "controller": "fixed",
    }  # fmt: skip
    drafter = SpatialDrafter(**{**settings, **changes})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.ndim > 1:
                weight.normal_(std=std, generator=generator)
    return drafter.requires_grad_(False).eval()


def tokens(pipe: LlamaGenPipeline, prompt: Any, **arguments: Any) -> Tensor:
    return pipe(prompt, output_type="tokens", **arguments).tokens


SETTINGS = {
    "cfg": {"guidance_scale": 2.0},
    "no-cfg": {"guidance_scale": 1.0},
    "cfg-until-6": {"guidance_scale": 3.0, "guided_until": 6},
    "greedy": {"temperature": 0},
    "T.7-k5": {"temperature": 0.7, "top_k": 5},
    "negative": {"negative_prompt": "green dog", "guidance_scale": 2.5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize(("horizontal", "vertical"), [(3, 2), (0, 1), (2, 0)])
def test_equals_plain(settings: dict, horizontal: int, vertical: int) -> None:
    """Windows of 1, 2, a row, a row and one, and more than the picture."""
    for window in (1, 2, 5, 6, 99):
        drafter = heads(horizontal=horizontal, vertical=vertical, window=window)
        pipe = tiny_pipeline(drafter=drafter)
        output = pipe(PROMPTS, seed=7, output_type="tokens", **settings)
        assert torch.equal(output.tokens, tokens(pipe, PROMPTS, seed=7, speculate=False, **settings))
        assert output.stats.guarantee.value == "SAME_TOKENS"
        assert output.stats.draft_forwards == output.stats.forwards


@pytest.mark.parametrize("controller", ["aimd", "cost-aware"])
@pytest.mark.parametrize("initializer", ["law", "copy-up", "mix"])
def test_changing_widths_and_other_guesses_behind_the_heads_equal_plain(controller: str, initializer: str) -> None:
    pipe = tiny_pipeline(drafter=heads(window=8, controller=controller, initializer=initializer))
    assert torch.equal(tokens(pipe, PROMPTS, seed=4), tokens(pipe, PROMPTS, seed=4, speculate=False))


@pytest.mark.parametrize("rule", ["coupled", "match", "ratio"])
@pytest.mark.parametrize("order", [1, -1])
def test_rows_equal_solo(rule: str, order: int) -> None:
    pipe = tiny_pipeline(drafter=heads(), acceptance=ACCEPTANCE_RULES.create(rule))
    prompts, row_seeds = [SHORT, LONG, "blue moon", "the sun"][::order], [3, 1, 4, 15][::order]
    alone = torch.cat([tokens(pipe, p, seed=s) for p, s in zip(prompts, row_seeds, strict=True)])
    for count in (1, 2, 3, 4):
        assert torch.equal(tokens(pipe, prompts[:count], seed=row_seeds[:count]), alone[:count])


class StatefulTable(TableTarget):
    """A toy target that hands out states, so that heads can read it: a fixed random vector per prefix."""

    def __init__(self, table: Tensor, length: int, num_rows: int) -> None:
        super().__init__(table, length, num_rows)
        generator = torch.Generator().manual_seed(5)
        self.states = torch.randn(len(table) + 1, D, generator=generator)
        self.embedding = torch.randn(V, D, generator=generator)
        self.head = torch.randn(D, V, generator=generator)
        zeros = torch.zeros(num_rows, dtype=torch.long)
        prompt = SimpleNamespace(length=zeros + 1, first=0)
        self.model = SimpleNamespace(
            prompt=prompt, embed_tokens=lambda t: self.embedding[t], predict=lambda h: h @ self.head
        )

    def _with_states(self, logits: Tensor) -> Tensor:
        number = (logits.double() @ torch.tensor([1.0, 7.0, 31.0]).double()).abs()
        return self.states[(number * 1e4).long() % len(self.states)]

    def prefill(self) -> TargetOutput:
        output = super().prefill()
        return TargetOutput(output.logits, self._with_states(output.logits))

    def verify(self, draft: Draft, longest: int) -> TargetOutput:
        output = super().verify(draft, longest)
        return TargetOutput(output.logits, self._with_states(output.logits))


def toy_run(
    rule: str, rows: int, window: int, session_class: type[SpatialSession] = SpatialSession
) -> tuple[Tensor, Any]:
    target = StatefulTable(random_table(V, M, seed=3), M, rows)
    drafter = heads(
        vocab_size=V, hidden_size=D, row_length=ROW, horizontal=1, vertical=1, intermediate_size=4, std=1.0
    )
    chosen = ACCEPTANCE_RULES.create(rule)
    setup = DraftSetup(
        num_rows=rows, vocab_size=V, device=torch.device("cpu"), max_new_tokens=M, needs_law=chosen.needs_law,
        row_length=ROW, runner=target,
    )  # fmt: skip
    session = drafter.session(setup)
    session.__class__ = session_class
    output, _ = decode(target, seeds(rows), M, session, chosen, width=window)
    return output, target


@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_law_of_an_enumerated_target(rule: str, window: int) -> None:
    rows = 20_000
    output, target = toy_run(rule, rows, window)
    law = enumerate_law(target, SamplingParams())
    assert abs(z_score(string_numbers(output, V), law)) < 4
    if rule == "coupled":
        plain, _ = decode(StatefulTable(random_table(V, M, seed=3), M, rows), seeds(rows), M)
        assert torch.equal(output, plain)


class WrongLaw(SpatialSession):
    """Negative control: says that its guesses are uniform, which they are not."""

    def observe(self, context: Any, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        super().observe(context, draft, output, verdict)
        assert self.log_q is not None
        self.log_q = torch.full_like(self.log_q, 1 / V).log()


def test_a_wrongly_stated_law_is_found() -> None:
    output, target = toy_run("ratio", 20_000, 3, WrongLaw)
    assert z_score(string_numbers(output, V), enumerate_law(target, SamplingParams())) > 10


@pytest.mark.parametrize(("horizontal", "reached"), [(2, [8, 4]), (1, [8, 1])])
def test_heads_guess_what_they_predict(horizontal: int, reached: list[int]) -> None:
    """Every slot of a ragged batch, by plain indexing: below by a vertical head, else along the row, else unknown."""
    length, nodes, generated, guidance = 4, 1, [7, 1], Guidance(2.0)
    drafter = heads(hidden_size=D, row_length=length, horizontal=horizontal, vertical=2)
    generator = torch.Generator().manual_seed(1)
    embedding, output = torch.randn(24, D, generator=generator), torch.randn(D, 24, generator=generator)
    model = SimpleNamespace(embed_tokens=lambda t: embedding[t], predict=lambda h: h @ output)
    runner = SimpleNamespace(model=model, guidance=guidance)
    session = drafter.session(DraftSetup(2, 24, torch.device("cpu"), 40, row_length=length, runner=runner))
    assert isinstance(session, SpatialSession)
    committed, drawn = (torch.randint(24, (2, n), generator=generator) for n in (40, nodes))
    states = torch.randn(4, length + nodes, D, generator=generator)  # from state -4 on
    count = torch.tensor(generated)
    noise, sampling = RowNoise(seeds(2), 24), SamplingParams(0.8, 9)
    context = RoundContext(
        tokens=committed, generated=count, rounds=count, root=committed.gather(1, count[:, None] - 1)[:, 0],
        noise=noise, sampling=sampling, lowest=1, highest=7,
    )  # fmt: skip
    guesses, _, known = session._guess(context, states, drawn, nodes, 8)
    used = set()
    for row, before in enumerate(generated):
        for place in range(8):
            slot = nodes + place
            rows_down = place // length + 1
            state = slot - rows_down * length
            if state >= -before:
                head = drafter.vertical_heads[rows_down - 1]
            elif place < horizontal:
                state, head = nodes - 1, drafter.horizontal_heads[place]
            else:
                assert int(known[row]) <= place
                continue
            token = drawn[row, state] if state >= 0 else committed[row, before + state]
            pairs = torch.cat([states[[row, row + 2], length + state], embedding[token].expand(2, -1)], dim=-1)
            logits = guidance.merge(head(pairs[:, None]) @ output, torch.tensor([[before + slot]]))[0]
            gumbel = noise.gumbel(Stream.TARGET, torch.full((2, 1), before + slot))[row]
            assert int(guesses[row, place]) == int(draw_token(logits, sampling, gumbel))
            used.add(head)
    assert known.tolist() == reached
    assert len(used) == horizontal + 2


@pytest.mark.parametrize(
    ("settings", "error", "named"),
    [
        ({"window": 0}, ValueError, "window"),
        ({"horizontal": -1}, ValueError, "-1"),
        ({"vertical": 1.5}, TypeError, "1.5"),
        ({"horizontal": 0, "vertical": 0}, ValueError, "JacobiDrafter"),
        ({"initializer": "random"}, ValueError, "copy-left"),
        ({"controller": "fast"}, ValueError, "cost-aware"),
        ({"mix": 2.0}, ValueError, "2.0"),
        ({"row_length": 0}, ValueError, "row_length"),
    ],
)
def test_bad_values_name_what_is_legal(settings: dict, error: type[Exception], named: str) -> None:
    with pytest.raises(error) as caught:
        SpatialDrafter(**{"hidden_size": 8, "intermediate_size": 8, **settings})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"vocab_size": 30}, "30"), ({"hidden_size": 64}, "64"), ({"row_length": 7}, "7")],
)
def test_heads_of_another_target_are_refused(changes: dict, named: str) -> None:
    pipe = tiny_pipeline(drafter=heads(**changes))
    with pytest.raises(ValueError, match=named):
        pipe(SHORT, seed=1)


def test_a_target_without_states_or_grid_is_refused() -> None:
    setup = DraftSetup(num_rows=1, vocab_size=24, device=torch.device("cpu"), max_new_tokens=4)
    with pytest.raises(ValueError, match="NGramDrafter"):
        heads().session(setup)
    runner = SimpleNamespace(model=SimpleNamespace(predict=None), guidance=None)
    with pytest.raises(ValueError, match="no grid"):
        heads().session(DraftSetup(1, 24, torch.device("cpu"), 4, runner=runner))


def test_it_is_saved_with_the_pipeline_and_read_back_strictly(tmp_path: Path) -> None:
    pipe = tiny_pipeline(drafter=heads())
    pipe.save_pretrained(tmp_path)
    loaded = LlamaGenPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded.drafter) is SpatialDrafter
    outputs = [p(PROMPTS, seed=5, output_type="tokens") for p in (pipe, loaded)]
    assert torch.equal(outputs[0].tokens, outputs[1].tokens)
    assert outputs[0].stats.forwards == outputs[1].stats.forwards
    assert LlamaGenPipeline.from_pretrained(tmp_path, drafter=NGramDrafter()).drafter.config.num_draft_tokens
    from safetensors.torch import load_file, save_file

    [file] = (tmp_path / "drafter").glob("*.safetensors")
    weights = load_file(file)
    weights.pop("vertical_heads.1.joint.weight")
    save_file(weights, file)
    with pytest.raises(ValueError, match=r"vertical_heads\.1\.joint\.weight"):
        LlamaGenPipeline.from_pretrained(tmp_path)


def test_settings_change_without_touching_the_weights() -> None:
    drafter = heads()
    narrow = drafter.with_settings(window=3)
    assert (narrow.config.window, drafter.config.window) == (3, 6)
    assert narrow.horizontal_heads[0].joint.weight.data_ptr() == drafter.horizontal_heads[0].joint.weight.data_ptr()
    with pytest.raises(ValueError, match="window"):
        drafter.with_settings(window=0)


def test_half_precision_heads_equal_plain() -> None:
    pipe = tiny_pipeline(drafter=heads().to(torch.bfloat16))
    assert torch.equal(tokens(pipe, PROMPTS, seed=7), tokens(pipe, PROMPTS, seed=7, speculate=False))
