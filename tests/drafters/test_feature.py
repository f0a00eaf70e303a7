"""Feature drafts never change a picture, keep step through ragged rounds, and know the target's noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.acceptance import ACCEPTANCE_RULES
from mmspec.core.controllers import RoundReport
from mmspec.drafters.feature import FeatureDrafter
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.pipelines.image_call import ImageCall
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.runner.features import FeatureRunner
from mmspec.runner.runner import Runner
from tests.oracles.tiny import few_codes_pipeline, tiny_feature, tiny_pipeline, tiny_transformer, tiny_vq

PROMPTS = ["a cat", "a very old red house on the", "dog"]
DRAFTS: dict[str, dict[str, Any]] = {
    "coupled-chain": {"tree": "chain", "num_nodes": 4},
    "coupled-static": {"tree": "static", "num_nodes": 12},
    "coupled-dynamic": {"num_nodes": 9, "depth": 5, "beam": 3, "branching": 3},
    "top-k-chain": {"mode": "top-k", "tree": "chain", "num_nodes": 3},
    "top-k-static": {"mode": "top-k", "tree": "static", "choices": [[0], [1], [6], [0, 0], [0, 1], [1, 0], [1, 0, 2]]},
    "top-k-dynamic": {"mode": "top-k", "num_nodes": 16, "beam": 2, "branching": 2},
    "sampled-chain": {"mode": "sampled", "tree": "chain", "num_nodes": 6},
    "sampled-static": {"mode": "sampled", "tree": "static", "num_nodes": 12},
    "sampled-beam": {"mode": "sampled", "num_nodes": 12, "beam": 3, "depth": 4},
    "sampled-twins": {"mode": "sampled", "tree": "static", "num_nodes": 12, "replacement": True},
}
CALLS: dict[str, dict[str, Any]] = {
    "guided": {},
    "greedy": {"temperature": 0.0},
    "unguided": {"guidance_scale": 1.0, "temperature": 0.6, "top_k": 0},
    "half-guided": {"guided_until": 6, "top_p": 0.9},
}


@pytest.fixture(scope="module")
def pipe() -> LlamaGenPipeline:
    return few_codes_pipeline()


@pytest.fixture(scope="module")
def plain(pipe: LlamaGenPipeline) -> dict[str, Tensor]:
    return {
        name: pipe(PROMPTS, seed=5, output_type="tokens", speculate=False, **call).tokens
        for name, call in CALLS.items()
    }


@pytest.mark.filterwarnings("ignore:Greedy decoding")
@pytest.mark.parametrize("draft", DRAFTS)
def test_equals_plain(draft: str, pipe: LlamaGenPipeline, plain: dict[str, Tensor]) -> None:
    """Ragged rows, both guidance branches, padded captions, trees wider than what is left of a picture."""
    pipe.drafter = tiny_feature(pipe.transformer, **DRAFTS[draft])
    for name, call in CALLS.items():
        output = pipe(PROMPTS, seed=5, output_type="tokens", **call)
        assert torch.equal(output.tokens, plain[name]), name
        assert output.stats.guarantee.value == "SAME_TOKENS"
    assert output.stats.draft_forwards > 0
    assert output.stats.acceptance_rate > 0


@pytest.mark.parametrize("settings", [{"own_embedding": True}, {"mask_padding": False}, {"input_norm": True},
                                      {"num_layers": 2}, {"joint_bias": False}])  # fmt: skip
def test_other_networks_equal_plain(settings: dict, pipe: LlamaGenPipeline, plain: dict[str, Tensor]) -> None:
    pipe.drafter = tiny_feature(pipe.transformer, **settings)
    assert torch.equal(pipe(PROMPTS, seed=5, output_type="tokens").tokens, plain["guided"])


@pytest.mark.parametrize("draft", ["coupled-chain", "coupled-static", "coupled-dynamic"])
def test_classes_equal_plain(draft: str, pipe: LlamaGenPipeline) -> None:
    pipe.drafter = tiny_feature(pipe.transformer, **DRAFTS[draft])
    call = {"class_labels": [2, 0], "seed": 1, "output_type": "tokens"}
    assert torch.equal(pipe(**call).tokens, pipe(**call, speculate=False).tokens)


@pytest.mark.parametrize("draft", ["coupled-chain", "coupled-dynamic"])
def test_a_drafter_in_another_type_equals_plain(draft: str, pipe: LlamaGenPipeline, plain: dict[str, Tensor]) -> None:
    """Fault 30."""
    pipe.drafter = tiny_feature(pipe.transformer, **DRAFTS[draft]).to(torch.bfloat16)
    assert torch.equal(pipe(PROMPTS, seed=5, output_type="tokens").tokens, plain["guided"])


@pytest.mark.parametrize(
    ("draft", "rule"),
    [("sampled-chain", "ratio"), ("sampled-chain", "block"), ("sampled-static", "match"), ("sampled-static", "recursive"), ("sampled-beam", "recursive"),
     ("coupled-dynamic", "recursive"), ("top-k-dynamic", "match"),
     ("coupled-chain", "ratio"), ("coupled-dynamic", "match")],
)  # fmt: skip
def test_rows_equal_solo_under_rules_that_change_the_sample(draft: str, rule: str) -> None:
    """Also near the end of a picture, where a row that is alone has shallower drafts than beside slower ones."""
    pipe = few_codes_pipeline(acceptance=ACCEPTANCE_RULES.create(rule))
    pipe.drafter = tiny_feature(pipe.transformer, **DRAFTS[draft])
    output = pipe(PROMPTS, seed=5, output_type="tokens")
    assert len({row.rounds for row in output.stats.rows}) > 1, "rows must be ragged for this test to mean anything"
    for row, prompt in enumerate(PROMPTS):
        alone = pipe(prompt, seed=5 + row, output_type="tokens")
        assert torch.equal(alone.tokens[0], output.tokens[row])


def predictable() -> tuple[LlamaGenTransformer, FeatureDrafter]:
    """A target whose state is the embedding of its newest code, and the drafter that predicts just that."""
    transformer = tiny_transformer()
    drafter = tiny_feature(transformer, target=None)
    with torch.no_grad():
        codes = transformer.token_embedding.weight
        codes /= codes.square().mean(-1, keepdim=True).sqrt()
        transformer.norm.weight.fill_(1.0)
        for part in (*transformer.layers, *drafter.layers):
            part.attention.out.weight.zero_()
            part.feed_forward.down.weight.zero_()
        drafter.joint.weight.copy_(torch.cat([torch.eye(32), torch.zeros(32, 32)], dim=1))
        drafter.joint.bias.zero_()
    return transformer, drafter


@pytest.mark.parametrize(("mode", "rule"), [("coupled", "coupled"), ("sampled", "ratio"), ("sampled", "block")])
@pytest.mark.parametrize("call", ["guided", "unguided"])
def test_a_perfect_drafter_is_always_right(mode: str, rule: str, call: str) -> None:
    """Shared noise, or a law equal to the target's: fifteen codes take the prefill and two rounds of seven."""
    transformer, drafter = predictable()
    pipe = tiny_pipeline(transformer=transformer, acceptance=ACCEPTANCE_RULES.create(rule))
    pipe.drafter = drafter.with_settings(mode=mode, tree="chain", num_nodes=7)
    output = pipe(PROMPTS, seed=3, output_type="tokens", **CALLS[call])
    assert output.stats.forwards == 3
    assert output.stats.acceptance_rate == 1.0
    # the prompt, then for each round the true pairs and five more steps
    assert output.stats.draft_forwards == 1 + 2 * 6


def test_without_the_targets_noise_even_a_perfect_law_is_often_wrong() -> None:
    """The control of the test above: the likeliest codes are not what the target draws."""
    transformer, drafter = predictable()
    pipe = tiny_pipeline(transformer=transformer)
    pipe.drafter = drafter.with_settings(mode="top-k", tree="chain", num_nodes=7)
    assert pipe(PROMPTS, seed=3, output_type="tokens").stats.acceptance_rate < 0.9


class OnOff:
    """Widths that switch drafting off for some rounds; the drafter must catch up."""

    def __init__(self, shift: int) -> None:
        self.widths = [1, 4, 1, 1, 3, 1, 1, 1, 2]
        self.round = shift

    def plan(self, limit: int, rows: int) -> int:
        self.round += 1
        return min(self.widths[(self.round - 1) % len(self.widths)], limit)

    def observe(self, report: RoundReport) -> None:
        pass


@pytest.mark.parametrize("shift", range(4))
def test_rounds_without_drafting_lose_nothing(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, drafter = predictable()
    pipe = tiny_pipeline(transformer=transformer)
    pipe.drafter = drafter.with_settings(tree="chain")
    monkeypatch.setattr(FeatureDrafter, "controller", lambda *arguments: OnOff(shift))
    assert pipe(PROMPTS, seed=3, output_type="tokens").stats.acceptance_rate == 1.0


@pytest.mark.parametrize("controller", ["aimd", "cost-aware"])
def test_controllers_equal_plain(controller: str, pipe: LlamaGenPipeline, plain: dict[str, Tensor]) -> None:
    for tree in ("chain", "dynamic", "static"):
        pipe.drafter = tiny_feature(pipe.transformer, tree=tree, controller=controller, num_nodes=16)
        assert torch.equal(pipe(PROMPTS, seed=5, output_type="tokens").tokens, plain["guided"])


@torch.no_grad()
@pytest.mark.parametrize("draft", ["coupled-chain", "coupled-dynamic", "coupled-static"])
@pytest.mark.parametrize("condition", [{"prompt": PROMPTS}, {"class_labels": [1, 3, 0]}])
def test_the_cache_equals_a_fresh_forward(draft: str, condition: dict, pipe: LlamaGenPipeline) -> None:
    """After every round, rolled back and ragged, keys and predictions are those of one pass over what is committed."""
    pipe.drafter = tiny_feature(pipe.transformer, std=0.05, **DRAFTS[draft])
    [request] = pipe._requests(ImageCall(seed=5, **condition))
    decoder = pipe.open_decoder(request)
    for progress in decoder.steps():
        if max(progress.lengths) > 12 or min(progress.lengths) == 1:
            continue
        context, session = decoder.context, decoder.drafter.runner
        states, logits = session.feed(context.generated, context.highest)
        kept = session.cache.lengths
        fresh_states, fresh_logits, fresh = run_afresh(pipe, request, progress.tokens, context.generated)
        assert torch.equal(kept, fresh.cache.lengths)
        assert torch.allclose(states, fresh_states, rtol=0, atol=1e-5)
        assert torch.allclose(logits, fresh_logits, rtol=0, atol=1e-5)
        for row, (start, stop) in enumerate(zip(session.cache.start.tolist(), kept.tolist(), strict=True)):
            for mine, true in zip(session.cache.keys, fresh.cache.keys, strict=True):
                assert torch.allclose(mine[row, start:stop], true[row, start:stop], rtol=0, atol=1e-5)
        # put the newest pair back, so that decoding can go on
        session.cache.lengths = kept - 1
        session.queue(
            decoder_states(pipe, request, progress.tokens, context.generated),
            context.root[:, None],
            torch.ones_like(context.root),
        )
    assert max(row.accepted for row in decoder.stats.rows) > 0


def teacher_forced(pipe: LlamaGenPipeline, request: Any, tokens: Tensor) -> tuple[Runner, Tensor, Tensor]:
    """A fresh session of the target, its states of the prompt, and of all of ``tokens`` (B, M)."""
    from mmspec.core.draft import Draft, DraftLaw

    target = Runner(request.model(request.network, torch.device("cpu")), request.guidance, 15, 16)
    prompt = target.prefill().hidden
    hidden = target.verify(Draft(tokens, DraftLaw.DETERMINISTIC), 1).hidden
    assert prompt is not None
    assert hidden is not None
    return target, prompt, hidden


def run_afresh(
    pipe: LlamaGenPipeline, request: Any, tokens: Tensor, generated: Tensor
) -> tuple[Tensor, Tensor, FeatureRunner]:
    """Predictions after ``generated`` (B,) of the ``tokens`` (B, M), from one pass over all their pairs."""
    target, prompt, hidden = teacher_forced(pipe, request, tokens)
    runner = FeatureRunner(pipe.drafter, target, 15, 32)
    runner.start(prompt, tokens[:, 0])
    runner.queue(hidden[:, :-1], tokens[:, 1:], generated - 1)
    return *runner.feed(generated, int(generated.max())), runner


def decoder_states(pipe: LlamaGenPipeline, request: Any, tokens: Tensor, generated: Tensor) -> Tensor:
    """The target's states (R, 1, D) of the code before each row's newest one."""
    _, prompt, hidden = teacher_forced(pipe, request, tokens)
    states = torch.cat([prompt[:, -1:], hidden], dim=1)
    place = (generated - 1).repeat(len(states) // len(generated))
    return states.gather(1, place[:, None, None].expand(-1, 1, states.shape[2]))


def test_larger_vocabulary_than_siblings() -> None:
    """A static tree may ask for more candidates than there are codes."""
    pipe = tiny_pipeline(transformer=tiny_transformer(vocab_size=3), vq=tiny_vq(3), top_k=2)
    for mode in ("coupled", "top-k", "sampled"):
        pipe.drafter = tiny_feature(
            pipe.transformer, mode=mode, tree="static", choices=[[0], [1], [4], [4, 0], [0, 2]]
        )
        plain = pipe(PROMPTS, seed=2, output_type="tokens", speculate=False).tokens
        assert torch.equal(pipe(PROMPTS, seed=2, output_type="tokens").tokens, plain)
