import argparse
import json
import os

import pytest
import torch
from safetensors.torch import save_file

from mmspec.checkpoints.llamagen import convert_llamagen_transformer, load_llamagen_transformer
from mmspec.image.llamagen import LlamaGenTransformer

OPTIONS = {"image_size": (48, 80), "num_heads": 2}

_LANTERN_NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "cls_embedding": "model.cls_embedding",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "layers.": "model.layers.",
    "output.": "lm_head.",
}


def lantern(state):
    """The same weights in the naming of LANTERN's files."""
    renamed = {}
    for name, tensor in state.items():
        name = "model." + name if name == "norm.weight" else name
        for theirs, other in _LANTERN_NAMES.items():
            name = name.replace(theirs, other)
        if "wqkv" in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace("attention.wqkv", f"self_attn.{letter}_proj")] = part.clone()
        else:
            renamed[name] = tensor
    return renamed


def shard(state, folder):
    folder.mkdir()
    names = sorted(state)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: state[name].contiguous() for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def saved(content, path, **options):
    torch.save(content, path, **options)
    return path


def save_safe(state, path):
    path.parent.mkdir(exist_ok=True)
    save_file(state, path)
    return path


TRAINER = {"steps": 7, "args": argparse.Namespace(lr=1e-4, model="GPT-B"), "optimizer": {"state": {}}}
LAYOUTS = {
    "ddp": lambda s, d: saved({"model": s}, d / "a.pt"),
    "ddp-with-options": lambda s, d: saved({"model": s} | TRAINER, d / "a.pt"),
    "deepspeed": lambda s, d: saved({"module": s, "global_steps": 3}, d / "a.pt"),
    "lightning": lambda s, d: saved({"state_dict": s, "epoch": 1}, d / "a.ckpt"),
    "fsdp": lambda s, d: saved(s, d / "a.pt"),
    "before-torch-1.6": lambda s, d: saved({"model": s}, d / "a.pth", _use_new_zipfile_serialization=False),
    "compiled": lambda s, d: saved({"model": {f"module._orig_mod.{n}": t for n, t in s.items()}}, d / "a.pt"),
    "with-rotary-table": lambda s, d: saved({"model": s | {"freqs_cis": torch.zeros(4)}}, d / "a.pt"),
    "views-of-one-buffer": lambda s, d: saved(s | {"norm.weight": torch.cat([s["norm.weight"]] * 2)[:16]}, d / "a.pt"),
    "safetensors": lambda s, d: save_safe(s, d / "a.safetensors"),
    "lantern-bin": lambda s, d: saved(lantern(s), d / "pytorch_model.bin"),
    "lantern-folder": lambda s, d: save_safe(lantern(s), d / "hub" / "model.safetensors").parent,
    "lantern-shards": lambda s, d: shard(lantern(s), d / "hub"),
    "lantern-index": lambda s, d: shard(lantern(s), d / "hub") / "model.safetensors.index.json",
}


def assert_holds(model, state):
    """Every tensor of the file is where it belongs."""
    ours = model.state_dict()
    for layer in range(2):
        theirs = f"layers.{layer}."
        both = torch.cat([state[theirs + "feed_forward.w1.weight"], state[theirs + "feed_forward.w3.weight"]])
        assert torch.equal(ours[theirs + "attention.qkv.weight"], state[theirs + "attention.wqkv.weight"])
        assert torch.equal(ours[theirs + "attention.out.weight"], state[theirs + "attention.wo.weight"])
        assert torch.equal(ours[theirs + "feed_forward.gate_up.weight"], both)
        assert torch.equal(ours[theirs + "feed_forward.down.weight"], state[theirs + "feed_forward.w2.weight"])
        assert torch.equal(ours[theirs + "attention_norm.weight"], state[theirs + "attention_norm.weight"])
        assert torch.equal(ours[theirs + "feed_forward_norm.weight"], state[theirs + "ffn_norm.weight"])
    names = {
        "token_embedding.weight": "tok_embeddings.weight",
        "norm.weight": "norm.weight",
        "head.weight": "output.weight",
        "class_embedding.weight": "cls_embedding.embedding_table.weight",
        "null_caption": "cls_embedding.uncond_embedding",
        "caption_projection.input.weight": "cls_embedding.cap_proj.fc1.weight",
        "caption_projection.output.weight": "cls_embedding.cap_proj.fc2.weight",
    }
    for name, source in names.items():
        assert (name in ours) == (source in state)
        assert name not in ours or torch.equal(ours[name], state[source])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_saved_model(decoder_state, layout, tmp_path):
    path = LAYOUTS[layout](decoder_state, tmp_path)
    folder = convert_llamagen_transformer(path, tmp_path / "out", **OPTIONS)
    model = LlamaGenTransformer.from_pretrained(folder)
    assert [file.name for file in folder.glob("*.safetensors")] == ["diffusion_pytorch_model.safetensors"]
    assert_holds(model, decoder_state)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.num_layers, config.intermediate_size) == (20, 16, 2, 24)
    assert (config.num_heads, config.num_kv_heads, config.grid_height, config.grid_width) == (2, None, 3, 5)
    by_caption = "cls_embedding.uncond_embedding" in decoder_state
    expected = (5, 8, None) if by_caption else (1, None, 5)
    assert (config.condition_length, config.caption_dim, config.num_classes) == expected


def test_converted_model_runs_as_loaded(class_state, tmp_path):
    path = saved({"model": class_state}, tmp_path / "a.pt")
    loaded = load_llamagen_transformer(path, **OPTIONS)
    reread = LlamaGenTransformer.from_pretrained(convert_llamagen_transformer(path, tmp_path / "out", **OPTIONS))
    inputs = {"class_labels": torch.tensor([2]), "position_ids": torch.arange(4)[None]}
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(tokens, **inputs).logits, reread(tokens, **inputs).logits)


def test_stored_or_requested_type(class_state, tmp_path):
    half = {name: tensor.bfloat16() for name, tensor in class_state.items()}
    path = saved(half, tmp_path / "a.pt")
    assert load_llamagen_transformer(path, **OPTIONS).dtype == torch.bfloat16
    assert load_llamagen_transformer(path, dtype=torch.float32, **OPTIONS).dtype == torch.float32


def test_grouped_heads_are_inferred(class_state, tmp_path):
    for layer in range(2):
        name = f"layers.{layer}.attention.wqkv.weight"
        class_state[name] = class_state[name][:32]  # 4 heads of 4, of which 2 for keys and values
    for path in (
        saved(class_state, tmp_path / "a.pt"),
        save_safe(lantern_grouped(class_state), tmp_path / "b.safetensors"),
    ):
        model = load_llamagen_transformer(path, image_size=64, num_heads=4)
        assert model.config.num_kv_heads == 2


def lantern_grouped(state):
    renamed = lantern({name: tensor for name, tensor in state.items() if "wqkv" not in name})
    for layer in range(2):
        parts = state[f"layers.{layer}.attention.wqkv.weight"].split([16, 8, 8])
        for letter, part in zip("qkv", parts, strict=True):
            renamed[f"model.layers.{layer}.self_attn.{letter}_proj.weight"] = part.clone()
    return renamed


def load(state, tmp_path, **options):
    return load_llamagen_transformer(saved(state, tmp_path / "decoder.pt"), **(OPTIONS | options))


def test_each_missing_tensor_is_named(decoder_state, tmp_path):
    for naming in (dict, lantern):
        for name in naming(decoder_state):
            state = naming(decoder_state)
            del state[name]
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                load(state, tmp_path)


def test_each_misshapen_tensor_is_named(decoder_state, tmp_path):
    for naming in (dict, lantern):
        for name, tensor in naming(decoder_state).items():
            state = naming(decoder_state) | {name: torch.cat([tensor, tensor], dim=-1)}
            # Where two tensors contradict each other, either may be the wrong one.
            pair = name.replace("uncond_embedding", "(uncond_embedding|cap_proj.fc1.weight)")
            with pytest.raises(ValueError, match=rf"of another shape: .*{pair}"):
                load(state, tmp_path)


def test_heads_must_divide_the_width(class_state, tmp_path):
    with pytest.raises(ValueError, match="num_heads"):
        load(class_state, tmp_path, num_heads=3)


def test_one_misshapen_tensor_is_the_only_one_named(class_state, tmp_path):
    class_state["layers.0.feed_forward.w1.weight"] = torch.zeros(3, 16)
    with pytest.raises(ValueError, match=r"1 of another shape: layers\.0\.feed_forward\.w1"):
        load(class_state, tmp_path)


def test_unexpected_tensors_are_named_and_counted(decoder_state, tmp_path):
    extra = {f"adapter.{i:02}": torch.zeros(1) for i in range(14)}
    with pytest.raises(ValueError, match=r"14 unexpected: adapter\.00, .*adapter\.09 and 4 more"):
        load(decoder_state | extra, tmp_path)


def test_missing_null_caption_says_why_it_matters(caption_state, tmp_path):
    del caption_state["cls_embedding.uncond_embedding"]
    with pytest.raises(ValueError, match=r"uncond_embedding.*null embedding is part of the weights"):
        load(caption_state, tmp_path)


def test_unpublished_size_needs_heads(class_state, tmp_path):
    with pytest.raises(ValueError, match=r"2 layers of width 16.*num_heads"):
        load(class_state, tmp_path, num_heads=None)


def test_image_size_must_fit_the_codes(class_state, tmp_path):
    with pytest.raises(ValueError, match="multiple of 16"):
        load(class_state, tmp_path, image_size=100)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_truncated_file_is_reported(class_state, suffix, keep, tmp_path):
    path = tmp_path / f"cut.{suffix}"
    save_file(class_state, path) if suffix == "safetensors" else torch.save({"model": class_state}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(ValueError, match=r"cut\.\w+ is damaged"):
        load_llamagen_transformer(path, **OPTIONS)


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("modern", [True, False])
def test_file_with_code_is_refused_and_not_run(class_state, modern, tmp_path):
    content = {"model": class_state, "args": Malicious(str(tmp_path / "ran"))}
    path = saved(content, tmp_path / "a.pt", _use_new_zipfile_serialization=modern)
    with pytest.raises(ValueError, match=r"a\.pt is refused.*code"):
        load_llamagen_transformer(path, **OPTIONS)
    assert not (tmp_path / "ran").exists()


def test_other_contents_are_refused(class_state, tmp_path):
    for content, message in [
        ([1, 2], "holds a list"),
        ({}, "empty"),
        ({"weights": class_state}, "not a state dict.*weights"),
        ({"a.weight": torch.zeros(1)}, r"neither tok_embeddings\.weight nor model\.embed_tokens\.weight"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_llamagen_transformer(saved(content, tmp_path / "a.pt"), **OPTIONS)


def test_wrong_paths_are_named(class_state, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_llamagen_transformer(tmp_path / "none.pt", **OPTIONS)
    with pytest.raises(ValueError, match="weight files found are: none"):
        load_llamagen_transformer(tmp_path, **OPTIONS)
    saved(class_state, tmp_path / "a.pt")
    saved(class_state, tmp_path / "b.pt")
    with pytest.raises(ValueError, match=r"a\.pt, b\.pt"):
        load_llamagen_transformer(tmp_path, **OPTIONS)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="legal endings"):
        load_llamagen_transformer(tmp_path / "notes.txt", **OPTIONS)


def test_shard_damage_is_reported(class_state, tmp_path):
    folder = shard(lantern(class_state), tmp_path / "hub")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    outside = content | {"weight_map": content["weight_map"] | {"x": "../b.safetensors"}}
    index.write_text(json.dumps(outside))
    with pytest.raises(ValueError, match="beside the index"):
        load_llamagen_transformer(folder, **OPTIONS)
    promised = content | {"weight_map": content["weight_map"] | {"x": "model-00001-of-00002.safetensors"}}
    index.write_text(json.dumps(promised))
    with pytest.raises(ValueError, match=r"1 tensors .* missing in the shards: x"):
        load_llamagen_transformer(folder, **OPTIONS)
    index.write_text(json.dumps(content))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="00002"):
        load_llamagen_transformer(folder, **OPTIONS)
