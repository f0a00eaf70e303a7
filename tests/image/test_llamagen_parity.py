"""The decoder against outputs of the authors' implementation, on tiny random weights (float32, 1e-5)."""

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from mmspec.checkpoints.llamagen import load_llamagen_transformer

TOLERANCE = {"rtol": 0, "atol": 1e-5}
NULL_CLASS = 10
T = 6  # caption slots


@pytest.fixture(scope="module")
def by_class(golden):
    model = load_llamagen_transformer(golden / "llamagen/c2i_tiny_weights.safetensors", image_size=64, num_heads=4)
    return model, load_file(golden / "llamagen/c2i_tiny_io.safetensors")


@pytest.fixture(scope="module")
def by_caption(golden):
    model = load_llamagen_transformer(golden / "llamagen/t2i_tiny_weights.safetensors", image_size=64, num_heads=4)
    return model, load_file(golden / "llamagen/t2i_tiny_io.safetensors")


def class_logits(model, labels, tokens):
    """Logits of every image token (R, N + 1, V): row t predicts token t."""
    positions = torch.arange(tokens.shape[1] + 1)[None]
    return model(tokens if tokens.numel() else None, class_labels=labels, position_ids=positions).logits


def caption_mask(slots, length):
    """Boolean (R, 1, T + length, T + length): causal, without padded caption keys, the diagonal always on."""
    size = T + length
    keys = torch.cat([slots.bool(), slots.new_ones(len(slots), length).bool()], dim=1)
    allowed = torch.ones(size, size).tril().bool() & keys[:, None]
    return (allowed | torch.eye(size).bool())[:, None]


def caption_logits(model, embeds, slots, tokens):
    """Logits of all caption slots and the image tokens (R, T + N, V)."""
    positions = torch.arange(T + tokens.shape[1])[None]
    mask = caption_mask(slots, tokens.shape[1])
    ids = tokens if tokens.numel() else None
    return model(ids, caption_embeds=embeds, position_ids=positions, attention_mask=mask).logits


def guided(conditional, unconditional, scale):
    return unconditional + scale * (conditional - unconditional)


def greedy(step, guidance, interval, rows):
    """Plain greedy decoding without a cache; ``step(tokens)`` gives last logits of both branches (R, V)."""
    tokens = torch.empty(rows, 0, dtype=torch.long)
    for index in range(16):
        conditional, unconditional = step(tokens)
        # The interval counts decode steps; the prefill (index 0) is always guided.
        use_guidance = guidance > 1 and (interval < 0 or index - 1 <= interval)
        logits = guided(conditional, unconditional, guidance) if use_guidance else conditional
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens


def test_rotary_table(by_class, by_caption):
    for model, io in (by_class, by_caption):
        cosine, sine = io["freqs_cis"].unbind(-1)  # (S, P / 2)
        ours = model.rotary.unflatten(-1, (-1, 2))  # (S, 2, P / 2, pair)
        assert_close(ours[:, 0], cosine[..., None].expand(-1, -1, 2), rtol=0, atol=1e-6)
        assert_close(ours[:, 1], torch.stack([-sine, sine], dim=-1), rtol=0, atol=1e-6)
        length = model.config.condition_length
        assert not ours[:length].any()


def test_class_logits_teacher_forced(by_class):
    model, io = by_class
    logits = class_logits(model, io["class_ids"], io["tokens"][:, :-1])
    assert_close(logits, io["logits_teacher_forced"], **TOLERANCE)


def test_class_logits_of_both_branches_and_guided(by_class):
    model, io = by_class
    conditional = class_logits(model, io["class_ids"], io["tokens"][:, :-1])
    unconditional = class_logits(model, torch.full_like(io["class_ids"], NULL_CLASS), io["tokens"][:, :-1])
    assert_close(conditional, io["logits_step_cond"], **TOLERANCE)
    assert_close(unconditional, io["logits_step_uncond"], **TOLERANCE)
    assert_close(guided(conditional, unconditional, 2.0), io["logits_cfg2"], **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "guidance", "interval"),
    [("greedy_nocfg", 1.0, -1), ("greedy_cfg2", 2.0, -1), ("greedy_cfg2_interval4", 2.0, 4)],
)
def test_class_greedy_tokens(by_class, name, guidance, interval):
    model, io = by_class
    labels = io["class_ids"]

    def step(tokens):
        null = torch.full_like(labels, NULL_CLASS)
        return tuple(class_logits(model, branch, tokens)[:, -1] for branch in (labels, null))

    assert torch.equal(greedy(step, guidance, interval, len(labels)), io[name])


def test_caption_projection(by_caption):
    model, io = by_caption
    assert_close(model.caption_projection(io["caption_features"]), io["caption_proj"], **TOLERANCE)
    assert_close(model.caption_projection(model.null_caption)[None], io["null_proj"], **TOLERANCE)


def test_caption_mask_rule(by_caption):
    _, io = by_caption
    size = T + 16
    assert torch.equal(caption_mask(io["caption_mask"], 16)[:, 0], io["attn_mask"][:, :size, :size].bool())


def test_caption_prefill_logits(by_caption):
    model, io = by_caption
    embeds = torch.cat([io["caption_features"], model.null_caption.expand(2, -1, -1)])
    logits = caption_logits(model, embeds, io["caption_mask"].repeat(2, 1), torch.empty(4, 0, dtype=torch.long))
    # What a padded slot computes is read by nobody, but the rule of the diagonal defines it.
    assert_close(logits, io["prefill_logits"], **TOLERANCE)


def test_caption_logits_of_both_branches_and_guided(by_caption):
    model, io = by_caption
    conditional, unconditional = (
        caption_logits(model, embeds, io["caption_mask"], io["tokens"][:, :-1])[:, T - 1 :]
        for embeds in (io["caption_features"], model.null_caption.expand(2, -1, -1))
    )
    assert_close(conditional, io["logits_step_cond"], **TOLERANCE)
    assert_close(unconditional, io["logits_step_uncond"], **TOLERANCE)
    assert_close(guided(conditional, unconditional, 3.0), io["logits_cfg3"], **TOLERANCE)


def test_caption_greedy_tokens(by_caption):
    model, io = by_caption

    def step(tokens):
        branches = (io["caption_features"], model.null_caption.expand(2, -1, -1))
        return tuple(caption_logits(model, embeds, io["caption_mask"], tokens)[:, -1] for embeds in branches)

    assert torch.equal(greedy(step, 3.0, -1, 2), io["greedy_cfg3"])
