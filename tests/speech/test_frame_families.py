"""Families on transformers' own classes: their loops agree with the class, and drafting never changes a code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from mmspec.core.sampling import SamplingParams
from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.speech.code_sampling import CodeSampling
from mmspec.speech.csm_frames import CsmFrames, embed_csm_prompt
from mmspec.speech.moshi_frames import MoshiFrames
from mmspec.speech.qwen3_omni_frames import Qwen3OmniFrames
from mmspec.speech.residual_drafter import ResidualDrafter
from tests.oracles.synthesis import (
    BOOKS,
    decode_frames,
    states_like,
    tiny_csm,
    tiny_heads,
    tiny_moshi_depth,
    tiny_omni_talker,
)

GREEDY = CodeSampling(SamplingParams(0.0), SamplingParams(0.0))
FRAMES = 4
TEXTS = ([1, 5, 9, 20], [1, 7, 7, 30, 31, 32], [1, 50])
SUPPRESSED = 8


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    return {"csm": tiny_csm(), "qwen3-omni": tiny_omni_talker(), "moshi": tiny_moshi_depth()}


def frames_of(family: str, networks: dict[str, Any], rows: tuple[int, ...]) -> Any:
    """The frame model of some rows."""
    network = networks[family]
    if family == "csm":
        return CsmFrames(network, [embed_csm_prompt(network, torch.tensor(TEXTS[row])) for row in rows], FRAMES)
    if family == "qwen3-omni":
        prompts = [states_like(1, len(TEXTS[row]), 32, row)[0] for row in rows]
        trailing = [states_like(1, 2 + row, 32, 10 + row)[0] for row in rows]
        return Qwen3OmniFrames(network, prompts, trailing, states_like(1, 1, 32, 99)[0, 0], FRAMES, SUPPRESSED)
    states = torch.cat([states_like(1, FRAMES, 48, row) for row in rows])
    text = torch.stack([torch.arange(FRAMES) + 3 * row for row in rows])
    return MoshiFrames(network, states, text)


def drafters(family: str) -> dict[str, Any]:
    input_width = {"csm": 48, "qwen3-omni": 32, "moshi": 32}[family]
    books = BOOKS + 1 if family == "moshi" else BOOKS
    made: dict[str, Any] = {
        kind: ResidualDrafter(heads=tiny_heads(kind, books, 32, input_width)) for kind in ("chained",)
    }
    return {"head_shift": ResidualDrafter(), "jacobi": JacobiDrafter(window=3, controller="fixed"), **made}


@pytest.mark.parametrize("family", ["csm", "qwen3-omni", "moshi"])
def test_drafts_and_layouts_and_batches_change_no_code(family: str, networks: dict[str, Any]) -> None:
    seeds = [3, 4, 5]
    alone = [decode_frames(frames_of(family, networks, (row,)), [seeds[row]], FRAMES).rows[0] for row in range(3)]
    assert len({tuple(row) for row in alone}) == 3
    for drafter in drafters(family).values():
        for layout in ("chain", "fixed"):
            again = [
                decode_frames(frames_of(family, networks, (row,)), [seeds[row]], FRAMES, drafter, layout=layout)
                for row in range(2)
            ]
            assert [decoded.rows[0] for decoded in again] == alone[:2]
            assert all(decoded.target.predictor_calls <= FRAMES * (BOOKS + 1) for decoded in again)
        assert decode_frames(frames_of(family, networks, (0, 1, 2)), seeds, FRAMES, drafter).rows == alone


def test_csm_greedy_is_the_classes_own(networks: dict[str, Any]) -> None:
    network = networks["csm"]
    network.generation_config.eos_token_id = None
    network.depth_decoder.generation_config.eos_token_id = None
    output = network.generate(
        input_ids=torch.tensor([TEXTS[0]]), do_sample=False, depth_decoder_do_sample=False, max_new_tokens=FRAMES
    )  # fmt: skip
    expected = output if isinstance(output, torch.Tensor) else output.sequences
    rows = decode_frames(frames_of("csm", networks, (0,)), [0], FRAMES, ResidualDrafter(), sampling=GREEDY).rows
    wanted = expected[0].flatten().tolist()
    assert rows[0][: len(wanted)] == wanted


def test_csm_ends_behind_a_frame_of_end_codes(networks: dict[str, Any]) -> None:
    model = frames_of("csm", networks, (0, 1))
    model.prefill()
    codes = torch.tensor([[0, 0, 0, 7], [0, 0, 5, 0]])
    logits, _ = model.advance(None, codes)
    assert logits[0].softmax(-1)[model.end] == 1
    assert logits[1].softmax(-1)[model.end] == 0


def test_qwen3_omni_greedy_is_the_classes_own(networks: dict[str, Any]) -> None:
    network = networks["qwen3-omni"]
    model = frames_of("qwen3-omni", networks, (1,))
    output = network.generate(
        inputs_embeds=model._prompts[0][None], trailing_text_hidden=model.trailing[0][None],
        tts_pad_embed=model.pad[None, None], talker_input_ids=torch.ones(1, len(TEXTS[1]), dtype=torch.long),
        attention_mask=torch.ones(1, len(TEXTS[1]), dtype=torch.long), max_new_tokens=FRAMES, do_sample=False,
        suppress_tokens=[t for t in range(72 - SUPPRESSED, 72) if t != 70], output_hidden_states=True,
        return_dict_in_generate=True, eos_token_id=70,
    )  # fmt: skip
    expected = torch.cat([step[-1] for step in output.hidden_states if step[-1] is not None]).flatten().tolist()
    rows = decode_frames(model, [0], FRAMES, ResidualDrafter(), sampling=GREEDY, end=70).rows
    assert len(expected) >= 2 * BOOKS
    assert rows[0][: len(expected)] == expected


def test_moshi_greedy_is_the_classes_own(networks: dict[str, Any]) -> None:
    network = networks["moshi"]
    model = frames_of("moshi", networks, (0,))
    rows = decode_frames(model, [0], FRAMES, ResidualDrafter(), sampling=GREEDY, layout="chain").rows[0]
    for frame in range(FRAMES):
        text, *codes = rows[frame * (BOOKS + 1) : (frame + 1) * (BOOKS + 1)]
        assert text == frame
        ids = torch.tensor([[text]])
        for code in codes:  # teacher-forced, one token at a time, without a cache: nothing of the mask can be wrong
            logits = network(
                input_ids=ids, last_hidden_state=model._all[:, frame, None].expand(-1, ids.shape[1], -1),
                attention_mask=torch.ones_like(ids),
            ).logits  # fmt: skip
            assert int(logits[0, -1].argmax()) == code
            ids = torch.cat([ids, torch.tensor([[code]])], dim=1)


def test_moshi_without_its_mask_is_wrong(networks: dict[str, Any]) -> None:
    """The trap that the frame model avoids: a block behind a cache without a mask."""
    network, ids = networks["moshi"], torch.tensor([[3, 4, 5, 6]])
    states = states_like(1, 1, 48).expand(-1, 4, -1)
    whole = network(input_ids=ids, last_hidden_state=states, attention_mask=torch.ones_like(ids)).logits[:, 2:]
    for mask, close in ((torch.ones_like(ids), True), (None, False)):
        cache = DynamicCache()
        first = torch.ones(1, 2, dtype=torch.long)
        network(
            input_ids=ids[:, :2], last_hidden_state=states[:, :2], attention_mask=first, use_cache=True, cache=cache
        )  # fmt: skip
        block = network(
            input_ids=ids[:, 2:], last_hidden_state=states[:, 2:], attention_mask=mask, use_cache=True, cache=cache
        ).logits  # fmt: skip
        assert torch.allclose(block, whole, atol=1e-4) is close


def test_omni_forward_applies_one_head_to_a_block(networks: dict[str, Any]) -> None:
    """The trap that the frame model avoids: the class's forward on a block."""
    predictor = networks["qwen3-omni"].code_predictor
    model = frames_of("qwen3-omni", networks, (0,))
    states, codes = states_like(1, 1, 32)[0], torch.tensor([[1, 2, 3]])
    inputs = model.inner_inputs(states, codes, 0)
    hidden = model.inner(states, codes)
    books = torch.arange(1, BOOKS)
    ours = model.head(hidden[:, 1:], books)[..., :64]
    theirs = predictor(inputs_embeds=inputs).logits[:, 1:]
    assert torch.allclose(ours[:, -1], theirs[:, -1], atol=1e-4)
    assert not torch.allclose(ours[:, 0], theirs[:, 0], atol=1e-2)
