"""The emoji recipes: data, captions, corrupted contexts, and twenty real steps that a kill does not change."""

from __future__ import annotations

import io
import json
import random
import signal
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import VQModel
from safetensors.torch import load_file
from transformers import T5EncoderModel

from mmspec.image.captions import left_pad
from mmspec.image.llamagen import LlamaGenTransformer
from mmspec.pipelines.llamagen import LlamaGenPipeline
from mmspec.training import captions, emoji, llamagen, vq
from mmspec.training.corruption import Corruption, corrupt
from mmspec.training.export import export
from mmspec.training.loop import checkpoint_path, step_generator
from mmspec.training.names import CLASSES, ICONIC, SHORT_FORMS

NAMES = {
    "Food & Drink": ["red-apple", "banana"],
    "Animals & Nature": ["dog-face", "wolf"],
    "Objects": ["key", "abacus"],
}
COLOURS = ["#d22", "#fd3", "#a63", "#888", "#38c", "#583"]


def write_archive(folder: Path, package: str, shape: str) -> None:
    """An icon package as npm packs it: some drawings, a skin tone, a flag, and one that is oblong."""
    names = [name for group in NAMES.values() for name in group]
    icons = {name: {"body": shape.format(colour)} for name, colour in zip(names, COLOURS, strict=True)}
    icons["key"]["width"] = 18
    icons |= {name: {"body": shape.format("#000")} for name in ("ok-hand-medium-skin-tone", "flag-x", "ear-tone2")}
    files = {
        "icons": {"prefix": package, "icons": icons, "width": 36, "height": 36},
        "metadata": {"categories": {**NAMES, "Flags": ["flag-x"]}},
    }
    with tarfile.open(folder / f"iconify-json-{package}-1.0.0.tgz", "w:gz") as archive:
        for name, content in files.items():
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(f"package/{name}.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emoji")
    write_archive(folder, "noto", '<circle cx="18" cy="18" r="14" fill="{}"/>')
    write_archive(folder, "twemoji", '<rect x="4" y="4" width="28" height="28" fill="{}"/>')
    write_archive(folder, "fluent-emoji-flat", '<path d="M18 2 34 34H2z" fill="{}"/>')
    return folder


@pytest.fixture(scope="module")
def tokenizer_folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny image tokenizer from twenty steps of the real recipe."""
    return vq.train(tiny_vq(data, tmp_path_factory.mktemp("vq")))


def tiny_vq(data: Path, output: Path, **changes: object) -> vq.VQConfig:
    config = vq.VQConfig(
        output=output,
        data=data,
        steps=20,
        batch_size=8,
        image_size=16,
        num_codes=16,
        channels=(8, 8, 8),
        warmup_steps=2,
        num_held_out=2,
        precision="fp32",
        log_every=1,
    )
    return replace(config, **changes)


def tiny_llamagen(data: Path, tokenizer_folder: Path, output: Path, **changes: object) -> llamagen.LlamaGenConfig:
    config = llamagen.LlamaGenConfig(
        output=output,
        data=data,
        vq=tokenizer_folder,
        names=(),
        steps=20,
        batch_size=8,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        condition_length=8,
        text_size=32,
        text_layers=1,
        text_vocab_size=300,
        warmup_steps=2,
        precision="fp32",
        log_every=1,
    )
    return replace(config, **changes)


def losses(output: Path) -> list[float]:
    return [entry["loss"] for entry in json.loads((output / "log.json").read_text())]


def same_weights(first: Path, second: Path) -> bool:
    a, b = (torch.load(checkpoint_path(path), weights_only=True) for path in (first, second))
    return all(torch.equal(a["model"][n], b["model"][n]) for n in a["model"]) and all(
        torch.equal(a["average"][n], b["average"][n]) for n in a["average"]
    )


# Data


def test_drawings_exclude_skin_tones_and_flags(data: Path) -> None:
    drawings = emoji.load_emoji(emoji.EmojiConfig(data=data, size=16))
    assert sorted(set(drawings.names)) == ["abacus", "banana", "dog-face", "key", "red-apple", "wolf"]
    assert drawings.images.shape == (18, 16, 16, 3)
    assert (drawings.images[:, 0, 0] == 255).all()  # on white


def test_missing_archive_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emoji.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"noto.*twemoji.*fluent-emoji-flat"):
        emoji.load_emoji(emoji.EmojiConfig(data=tmp_path))


def test_names_are_unique_and_short_forms_unambiguous() -> None:
    listed = [name for names in CLASSES.values() for name in names.split()]
    assert set(ICONIC) <= set(listed)
    assert len(set(ICONIC)) == len(ICONIC)
    own = {name.replace("-", " ") for name in listed}
    short = [form for forms in SHORT_FORMS.values() for form in forms]
    assert len(listed) == len(set(listed))
    assert len(short) == len(set(short))
    assert not own & set(short)
    assert set(SHORT_FORMS) <= set(listed)


# Captions


def test_conditions_come_in_the_documented_shares() -> None:
    rng, classes = random.Random(0), tuple(CLASSES)
    drawn = [captions.draw_condition("red-apple", 2, "noto", classes, rng) for _ in range(20_000)]
    assert np.mean([c.label == 2 for c in drawn]) == pytest.approx(0.08, abs=0.01)
    assert np.mean([c.label == len(classes) for c in drawn]) == pytest.approx(0.02, abs=0.005)
    assert np.mean([c.null for c in drawn]) == pytest.approx(0.08, abs=0.01)
    texts = {c.text for c in drawn if c.label < 0 and not c.null}
    assert {"red apple, noto style", "red apple", "apple", "food, noto style"} <= texts


def test_tokenizer_ignores_case_and_punctuation() -> None:
    tokenizer = captions.train_tokenizer(("food",), 400, 8)
    assert tokenizer("Red-Apple,  NOTO style!").input_ids == tokenizer("red apple noto style").input_ids
    ids, mask = captions.tokenize(tokenizer, ["apple", "a very long caption that does not fit at all"], 8)
    assert ids.shape == mask.shape == (2, 8)
    assert ids[1, -1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("żółw").input_ids, skip_special_tokens=True).strip() == "żółw"


def test_left_padding_rotates_the_tokens_and_zeroes_the_rest() -> None:
    features = torch.arange(1.0, 9.0).reshape(2, 4, 1)
    rotated, mask = left_pad(features, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
    assert rotated[..., 0].tolist() == [[0, 0, 1, 2], [5, 6, 7, 8]]
    assert mask.tolist() == [[False, False, True, True], [True] * 4]


def test_prefix_mask_is_causal_without_padding_and_never_empty() -> None:
    mask = captions.prefix_mask(torch.tensor([[False, True, True]]), 2)[0, 0].int()
    assert mask.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 1]]


# Corruption


def test_corruption_spares_the_share_and_the_prefix() -> None:
    codes = torch.arange(64)[None].expand(4000, -1).contiguous()
    noisy = corrupt(codes, 8, 512, Corruption(suffix=0.3, scattered=0.3), step_generator(0, 0))
    changed = noisy != codes
    touched = changed.any(dim=1)
    assert touched.float().mean() == pytest.approx(0.6, abs=0.05)
    assert (codes == torch.arange(64)).all()
    assert noisy.min() >= 0
    assert noisy.max() < 512
    first = changed.float().mean(dim=0)  # a random prefix is clean, so the rate grows along the image
    assert first[-8:].mean() > 2 * first[:8].mean()


def test_no_share_means_no_corruption() -> None:
    codes = torch.randint(512, (16, 64))
    assert torch.equal(corrupt(codes, 8, 512, Corruption(suffix=0, scattered=0), step_generator(0, 0)), codes)


def test_lost_contexts_tell_nothing_but_what_was_left_of_the_picture() -> None:
    codes = torch.randint(512, (4000, 64), generator=step_generator(1, 0))
    noisy = corrupt(codes, 8, 512, Corruption(lost=1.0, suffix=0, scattered=0), step_generator(0, 0))
    kept = (noisy == codes).float().mean(dim=1)
    assert kept.mean() < 0.12
    assert kept.max() < 0.5
    left_of = noisy[:, 1:] == codes[:, :-1]
    assert left_of.float().mean() < 0.05  # a neighbour's true code would give the picture away


# Training


def test_tokenizer_recipe_learns(data: Path, tokenizer_folder: Path) -> None:
    curve = losses(tokenizer_folder.parent)
    assert np.mean(curve[-3:]) < 0.8 * np.mean(curve[:3])
    model = VQModel.from_pretrained(tokenizer_folder).eval()
    images = emoji.load_emoji(emoji.EmojiConfig(data=data, size=16)).images
    assert vq.encode(model, images).shape == (18, 16)
    assert set(vq.evaluate(model, images)) == {"psnr", "codes_used", "entropy_bits"}


def test_decoder_recipe_learns_and_saves(data: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    config = tiny_llamagen(data, tokenizer_folder, tmp_path, learning_rate=5e-3)
    llamagen.train(config)
    curve = losses(tmp_path)
    assert np.mean(curve[-3:]) < np.mean(curve[:3])
    assert (tmp_path / "loss.png").exists()
    assert llamagen.load_checkpoint(config)[3]["steps"] == 20


def test_export_writes_half_precision_parts_and_a_card(data: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    first = tiny_llamagen(data, tokenizer_folder, tmp_path / "first", steps=2)
    second = replace(
        first, output=tmp_path / "second", steps=3, start_from=first.output, corruption=Corruption(0.6, 0.1, 0.1)
    )
    llamagen.train(first)
    llamagen.train(second)
    codes = tiny_vq(data, tokenizer_folder.parent)
    more = {"prompts": ["key"], "recommended": {"top_k": 8}}
    folder = export(second, codes, tmp_path / "out", assessment="Blobs.", earlier=[first], **more)
    stored = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    for part, kind in {"transformer": LlamaGenTransformer, "vq": VQModel, "text_encoder": T5EncoderModel}.items():
        assert next(kind.from_pretrained(folder / part).parameters()).dtype == torch.float32
    card = (folder / "README.md").read_text()
    assert "Blobs." in card
    assert "1. 2 steps of 8" in card
    assert "2. 3 steps of 8 in 0 minutes: 60% lost" in card
    assert 'start_from="runs/stage-1"' in card
    assert "Twemoji" in (folder / "NOTICE").read_text()
    pipe = LlamaGenPipeline.from_pretrained(folder)
    assert pipe.config.class_names[0] == "animal"
    assert pipe.drafter.config.prior["64"] >= 1
    assert torch.equal(pipe("key", seed=1).tokens, pipe("key", seed=1, speculate=False).tokens)


def test_second_stage_starts_from_the_newest_weights(data: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    first = tiny_llamagen(data, tokenizer_folder, tmp_path / "first", learning_rate=5e-3)
    llamagen.train(first)
    fresh = tiny_llamagen(data, tokenizer_folder, tmp_path / "fresh", steps=1)
    llamagen.train(fresh)
    llamagen.train(replace(fresh, output=tmp_path / "second", start_from=first.output))
    assert losses(tmp_path / "second")[0] < losses(tmp_path / "fresh")[0]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        llamagen.train(replace(fresh, start_from=tmp_path / "nowhere"))


@pytest.mark.parametrize("recipe", ["vq", "llamagen"])
def test_resumed_run_equals_an_uninterrupted_one(
    recipe: str, data: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGINT after the seventh step, then a resumption, gives the very weights of a run of twenty steps."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    module = vq if recipe == "vq" else llamagen

    def config(output: Path) -> vq.VQConfig | llamagen.LlamaGenConfig:
        return tiny_vq(data, output) if recipe == "vq" else tiny_llamagen(data, tokenizer_folder, output)

    def interrupt(seed: int, step: int) -> torch.Generator:
        if step == 6:
            signal.raise_signal(signal.SIGINT)
        return step_generator(seed, step)

    module.train(config(whole))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(module, "step_generator", interrupt)
        with pytest.raises(KeyboardInterrupt, match="step 7"):
            module.train(config(parts))  # type: ignore[arg-type]
    assert not same_weights(whole, parts)
    module.train(replace(config(parts), resume=True))  # type: ignore[arg-type]
    assert same_weights(whole, parts)
    assert losses(whole) == losses(parts)


def test_resuming_with_other_settings_is_refused(data: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    llamagen.train(tiny_llamagen(data, tokenizer_folder, tmp_path, steps=1))
    with pytest.raises(ValueError, match=r"learning_rate.*0\.5"):
        llamagen.train(tiny_llamagen(data, tokenizer_folder, tmp_path, learning_rate=0.5, resume=True))


def test_mixed_batch_equals_the_models_own_forward(data: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Captions and classes of one training batch get the logits that the decoder gives each of them alone."""
    config = tiny_llamagen(data, tokenizer_folder, tmp_path)
    image_tokenizer = VQModel.from_pretrained(tokenizer_folder)
    tokenizer = captions.train_tokenizer(config.classes, 300, 8)
    model = llamagen.build(config, image_tokenizer)
    dataset = llamagen.load_dataset(config, image_tokenizer)
    tokens, mask = captions.tokenize(tokenizer, ["apple", "", "dog"], 8)
    codes = dataset.codes[:3]
    null, labels = torch.tensor([False, False, True]), torch.tensor([-1, 2, -1])
    net = model.transformer
    with torch.no_grad():
        mixed = model(llamagen.Batch(tokens, mask, null, labels, codes, codes))
        features, kept = model.captions(tokens, mask)
        features[2] = net.null_caption
        positions = torch.arange(8 + 15)[None]
        attention = captions.prefix_mask(kept, 15)
        by_caption = net(codes[:, :-1], caption_embeds=features, position_ids=positions, attention_mask=attention)
        by_class = net(codes[1:2, :-1], class_labels=labels[1:2], position_ids=positions[:, 7:])
    torch.testing.assert_close(mixed[[0, 2]], by_caption.logits[[0, 2], 7:], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(mixed[1], by_class.logits[0], atol=1e-5, rtol=1e-4)


# Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "`steps` and `minutes` are both None"),
        ({"steps": -3}, "`steps` is -3"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"average_decay": 1.0}, r"`average_decay` is 1\.0"),
        ({"precision": "fp8"}, "`precision` is 'fp8'"),
        ({"text_size": 20}, "20"),
    ],
)
def test_bad_settings_name_the_value(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_llamagen(tmp_path, tmp_path, tmp_path, **changes)


def test_bad_tokenizer_settings_name_the_value(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`image_size` is 18"):
        tiny_vq(tmp_path, tmp_path, image_size=18)
    with pytest.raises(ValueError, match="`size` is 47"):
        emoji.EmojiConfig(data=tmp_path, size=47)
    with pytest.raises(ValueError, match="fish"):
        emoji.EmojiConfig(data=tmp_path, classes=("fish",))
    with pytest.raises(ValueError, match="`vocab_size` is 100"):
        captions.train_tokenizer(("food",), 100, 8)


@pytest.mark.parametrize("shares", [{"lost": -0.1}, {"lost": 0.6, "suffix": 0.5}])
def test_bad_corruption_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at most 1"):
        Corruption(**shares)
