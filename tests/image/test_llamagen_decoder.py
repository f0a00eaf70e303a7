"""Claims about the decoder that need no reference outputs."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from mmspec.image.llamagen import LlamaGenTransformer


class GrowingCache:
    """Keeps exactly the keys and values seen so far."""

    def __init__(self):
        self.layers = {}

    def update(self, key, value, layer):
        if layer in self.layers:
            key, value = (torch.cat([old, new], 2) for old, new in zip(self.layers[layer], (key, value), strict=True))
        self.layers[layer] = key, value
        return key, value


@pytest.fixture(params=[None, 2], ids=["full-heads", "grouped-heads"])
def model(request):
    torch.manual_seed(0)
    return LlamaGenTransformer(
        vocab_size=16,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=request.param,
        grid_height=3,
        grid_width=5,
    ).eval()


@pytest.mark.parametrize("chunks", [(1,) * 6, (2, 3, 1), (5, 1)])
@torch.no_grad()
def test_cached_chunks_without_mask_equal_one_pass(model, chunks):
    tokens, labels = torch.arange(5)[None], torch.tensor([3])
    whole = model(tokens, class_labels=labels, position_ids=torch.arange(6)[None]).logits
    cache, parts, start = GrowingCache(), [], 0
    for size in chunks:
        first = start == 0
        ids = tokens[:, max(start - 1, 0) : start - 1 + size]
        output = model(
            ids if ids.numel() else None,
            class_labels=labels if first else None,
            position_ids=torch.arange(start, start + size)[None],
            cache=cache,
        )
        parts.append(output.logits)
        start += size
    assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_angles_stay_exact_in_half_precision(model, tmp_path):
    exact = model.rotary.clone()
    model.save_pretrained(tmp_path)
    loaded = LlamaGenTransformer.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    for half in (model.to(torch.bfloat16), loaded, loaded.half(), loaded.to("cpu", torch.bfloat16)):
        assert half.rotary.dtype == torch.float32
        assert torch.equal(half.rotary, exact)
    assert loaded.dtype == torch.bfloat16
    logits = loaded(class_labels=torch.tensor([1]), position_ids=torch.zeros(1, 1, dtype=torch.long)).logits
    assert logits.dtype == torch.float32


def test_last_logits_only(model):
    arguments = {"class_labels": torch.tensor([1]), "position_ids": torch.arange(4)[None]}
    whole = model(torch.tensor([[1, 2, 3]]), **arguments).logits
    assert_close(model(torch.tensor([[1, 2, 3]]), num_logits=2, **arguments).logits, whole[:, -2:])


def test_condition_is_required():
    with pytest.raises(ValueError, match="needs a condition"):
        LlamaGenTransformer(num_classes=None)


def test_saved_model_with_a_tensor_too_few_or_too_many_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    complete = load_file(file)
    for name in complete:
        save_file({other: tensor for other, tensor in complete.items() if other != name}, file)
        with pytest.raises(ValueError, match=rf"LlamaGenTransformer.*1 missing: {name}"):
            LlamaGenTransformer.from_pretrained(tmp_path)
    save_file(complete | {"stray": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="1 unexpected: stray"):
        LlamaGenTransformer.from_pretrained(tmp_path)
    save_file(complete, file)
    _, info = LlamaGenTransformer.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
