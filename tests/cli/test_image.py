"""``mmspec image``: files, their names and what they say about themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PROMPT = "a red apple"


def pixels(path):
    return np.asarray(Image.open(path)).tolist()


def written(result):
    return [Path(line) for line in result.stdout.splitlines() if line.endswith(".png")]


def test_picture_says_how_it_was_made(mmspec, tiny):
    result = mmspec("image", PROMPT, "--model", tiny, "--seed", 7, "--temperature", 0.9, "--negative-prompt", "sea")
    [path] = written(result)
    facts = Image.open(path).text
    assert path == Path("outputs/a-red-apple-0001.png")
    assert (facts["prompt"], facts["seed"], facts["model"]) == (PROMPT, "7", tiny)
    assert (facts["method"], facts["guarantee"]) == ("jacobi+coupled", "SAME_TOKENS")
    assert {"mmspec", "python", "torch", "diffusers", "transformers"} <= json.loads(facts["versions"]).keys()
    settings = json.loads(facts["settings"])
    assert (settings["temperature"], settings["top_k"], settings["negative_prompt"]) == (0.9, 12, "sea")
    assert settings["drafter"]["window"] == 6
    assert result.stdout.splitlines()[-1].startswith("jacobi+coupled [SAME_TOKENS]: 15 tokens")


def test_prompts_in_any_script_make_names_and_metadata(mmspec, tiny):
    [path] = written(mmspec("image", "Ein schöner Baum / 木!", "--model", tiny))
    assert path.name == "ein-schöner-baum-木-0001.png"
    assert Image.open(path).text["prompt"] == "Ein schöner Baum / 木!"


def test_plain_and_speculative_pictures_are_equal(mmspec, tiny):
    [fast] = written(mmspec("image", PROMPT, "--model", tiny, "--seed", 3))
    [plain] = written(mmspec("image", PROMPT, "--model", tiny, "--seed", 3, "--plain"))
    assert fast != plain
    assert pixels(fast) == pixels(plain)
    assert Image.open(plain).text["method"] == "plain"


@pytest.mark.parametrize("size", [1, 3, 4])
def test_seeds_go_on_across_micro_batches(mmspec, tiny, size):
    prompts = [f"{PROMPT} {word}" for word in ("dog", "cat", "moon", "sun", "house", "tree")]
    whole = written(mmspec("image", *prompts, "--model", tiny, "--seed", 10, "-o", "whole"))
    parts = written(mmspec("image", *prompts, "--model", tiny, "--seed", 10, "-o", "m", "--micro-batch-size", size))
    assert [Image.open(path).text["seed"] for path in parts] == [str(seed) for seed in range(10, 16)]
    assert [pixels(path) for path in parts] == [pixels(path) for path in whole]


def test_pictures_per_prompt_keep_their_prompt(mmspec, tiny):
    paths = written(mmspec("image", PROMPT, "old house", "--model", tiny, "--num-images", 2, "--seed", 0))
    assert [Image.open(path).text["prompt"] for path in paths] == [PROMPT, PROMPT, "old house", "old house"]


def test_equal_prompts_and_second_runs_lose_nothing(mmspec, tiny):
    first = written(mmspec("image", PROMPT, PROMPT, "--model", tiny))
    second = written(mmspec("image", PROMPT, "--model", tiny))
    assert len({*first, *second}) == 3


def test_overwrite_replaces_the_last_run(mmspec, tiny):
    first = written(mmspec("image", PROMPT, PROMPT, "--model", tiny, "--seed", 1))
    second = written(mmspec("image", PROMPT, PROMPT, "--model", tiny, "--seed", 5, "--overwrite"))
    assert first == second
    assert [Image.open(path).text["seed"] for path in second] == ["5", "6"]


def test_an_exact_file_is_not_overwritten(mmspec, tiny):
    words = ("image", PROMPT, "--model", tiny, "-o", "apple.png")
    assert mmspec(*words, "--seed", 1).exit_code == 0
    again = mmspec(*words, "--seed", 2)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    assert Image.open("apple.png").text["seed"] == "1"
    assert mmspec(*words, "--seed", 2, "--overwrite").exit_code == 0
    assert Image.open("apple.png").text["seed"] == "2"


def test_classes_by_number_and_name(mmspec, tiny):
    result = mmspec("image", "--class-label", "1", "--class-label", "sky", "--model", tiny, "--plain")
    assert [Image.open(path).text["class_label"] for path in written(result)] == ["1", "sky"]


def test_set_changes_the_saved_drafter(mmspec, tiny):
    [path] = written(mmspec("image", PROMPT, "--model", tiny, "--set", "drafter.window=3"))
    drafter = json.loads(Image.open(path).text["settings"])["drafter"]
    assert (drafter["window"], drafter["controller"]) == (3, "fixed")


def test_drafter_and_rule_by_name(mmspec, tiny):
    words = ("--drafter", "jacobi", "--acceptance", "ratio", "--set", "drafter.coupling=independent")
    [path] = written(mmspec("image", PROMPT, "--model", tiny, *words))
    facts = Image.open(path).text
    assert (facts["method"], facts["guarantee"]) == ("jacobi+ratio", "SAME_LAW")


def test_schedule_by_name(mmspec, tiny):
    [path] = written(mmspec("image", PROMPT, "--model", tiny, "--schedule", "zipar", "--set", "schedule.window=2"))
    facts = Image.open(path).text
    assert (facts["method"], facts["guarantee"]) == ("zipar", "HEURISTIC")
    settings = json.loads(facts["settings"])
    assert (settings["schedule"]["class"], settings["schedule"]["window"]) == ("ZipARSchedule", 2)
    assert "drafter" not in settings


def test_draft_model_by_its_folder(mmspec, tiny):
    words = ("--drafter", "model", "--set", f"drafter.model={tiny}/transformer", "--set", "drafter.num_draft_tokens=2")
    result = mmspec("image", PROMPT, "--model", tiny, *words)
    assert result.exit_code == 0, result.stderr
    assert "model+coupled [SAME_TOKENS]" in result.stdout
    assert "in 6 forwards" in result.stdout  # the target drafts for itself: 1 + 3 * 4 + 2 tokens


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give prompts or --class-label"),
        ((PROMPT, "--class-label", "1"), "one of the two"),
        ((PROMPT, PROMPT, "-o", "a.png"), "name a folder"),
        ((PROMPT, "-o", "a.jpg"), "PNG"),
        ((PROMPT, "--set", "drafter.windw=3"), "legal are window, coupling"),
        ((PROMPT, "--set", "windw=3"), "drafter.NAME=VALUE"),
        ((PROMPT, "--set", "acceptance.x=3"), "--acceptance"),
        ((PROMPT, "--acceptance", "coupled", "--set", "acceptance.x=3"), "has none"),
        ((PROMPT, "--set", "drafter.window=0"), "at least 1"),
        ((PROMPT, "--drafter", "psychic"), "jacobi, model, mtp, ngram"),
        ((PROMPT, "--plain", "--drafter", "jacobi"), "--plain"),
        ((PROMPT, "--plain", "--schedule", "zipar"), "--plain"),
        ((PROMPT, "--schedule", "zippy"), "zipar"),
        ((PROMPT, "--schedule", "zipar", "--set", "schedule.window=0"), "at least 1"),
        ((PROMPT, "--schedule", "zipar", "--drafter", "jacobi"), "without drafter"),
        ((PROMPT, "--set", "schedule.window=2"), "--schedule"),
        ((PROMPT, "--temperature", "-1"), "temperature"),
        ((PROMPT, "--device", "tpu"), "choose one of auto"),
        ((PROMPT, "--dtype", "int3"), "choose one of auto"),
        (("--class-label", "desert"), "food, sky, sea, city"),
        ((PROMPT, "--micro-batch-size", "0"), "micro_batch_size"),
    ],
)
def test_wrong_calls_name_what_is_legal(mmspec, tiny, words, message):
    result = mmspec("image", *words, "--model", tiny)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(Path().rglob("*.png"))


def test_unknown_model(mmspec):
    result = mmspec("image", PROMPT, "--model", "mmspec/none")
    assert result.exit_code == 2
    assert "mmspec/none" in result.stderr
