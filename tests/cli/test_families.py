"""``mmspec image`` and ``mmspec models`` for the families: a folder loads by its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.drafters.jacobi import JacobiDrafter
from mmspec.image.families import IMAGE_FAMILIES, model_types
from tests.oracles.families import chameleon_pipeline, emu3_pipeline, family_pipeline, janus_pipeline

PROMPT = "a red apple"


def written(result) -> Path:
    assert result.exit_code == 0, result.stderr
    [path] = [Path(line) for line in result.stdout.splitlines() if line.endswith(".png")]
    return path


@pytest.mark.parametrize("family", ["emu3", "janus", "lumina"])
def test_pictures_from_a_saved_pipeline(mmspec: Callable, family: str, tmp_path: Path) -> None:
    pipe = family_pipeline(family, drafter=JacobiDrafter(window=6, controller="fixed"))
    pipe.save_pretrained(tmp_path / "model")
    fast = Image.open(written(mmspec("image", PROMPT, "--model", "./model", "--seed", 3)))
    plain = Image.open(written(mmspec("image", PROMPT, "--model", "./model", "--seed", 3, "--plain")))
    assert fast.text["method"] == "jacobi+coupled"
    assert (np.asarray(fast) == np.asarray(plain)).all()
    assert (np.asarray(fast) == np.asarray(pipe(PROMPT, seed=3).images[0])).all()


def test_pictures_from_the_model_alone(mmspec: Callable, tmp_path: Path) -> None:
    pipe = janus_pipeline()
    pipe.model.save_pretrained(tmp_path / "bare")
    pipe.processor.save_pretrained(tmp_path / "bare")
    image = Image.open(written(mmspec("image", PROMPT, "--model", "./bare", "--seed", 3)))
    assert (image.size, image.text["method"]) == ((8, 8), "jacobi+coupled")


def test_sizes(mmspec: Callable, tmp_path: Path) -> None:
    emu3_pipeline(drafter=JacobiDrafter(window=6, controller="fixed")).save_pretrained(tmp_path / "model")
    words = ("image", PROMPT, "--model", "./model")
    assert Image.open(written(mmspec(*words, "--aspect-ratio", "5:3"))).size == (10, 6)
    assert Image.open(written(mmspec(*words, "--height", 10, "--width", 6))).size == (6, 10)
    refused = mmspec(*words, "--height", 7)
    assert refused.exit_code == 2
    assert "multiples of 2" in refused.stderr


def test_unusable_folders_name_what_is_legal(mmspec: Callable, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "llava"}')
    result = mmspec("image", PROMPT, "--model", "./other")
    assert result.exit_code == 2
    assert "chameleon, emu3, janus" in " ".join(result.stderr.split())
    pipe = chameleon_pipeline("anole")
    pipe.model.save_pretrained(tmp_path / "bare")
    pipe.tokenizer.save_pretrained(tmp_path / "bare")
    result = mmspec("image", PROMPT, "--model", "./bare")
    assert result.exit_code == 2
    assert "anole or lumina" in " ".join(result.stderr.split())


def test_models_lists_the_families(mmspec: Callable) -> None:
    shown = " ".join(mmspec("models").stdout.split())
    for family in IMAGE_FAMILIES:
        assert family.name in shown
    assert model_types().keys() == {"emu3", "janus", "chameleon"}


def test_every_family_has_its_page_and_its_pipeline() -> None:
    import mmspec as library

    for family in IMAGE_FAMILIES:
        page = Path(__file__).resolve().parents[2] / "docs" / "families" / f"{family.name}.md"
        text = page.read_text()
        assert family.pipeline in text
        assert hasattr(library, family.pipeline)
        assert all(
            hub_id in text or hub_id.removeprefix("Alpha-VLLM/Lumina-mGPT-7B") in text for hub_id in family.hub_ids
        )
