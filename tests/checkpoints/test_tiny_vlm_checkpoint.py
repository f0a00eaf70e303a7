"""The embedded vision-language model as shipped: it reads unseen lines, drafts pay and change no token, and the card says what was measured."""

from __future__ import annotations

import json

import pytest

from mmspec import Eagle3Drafter, VisionLanguagePipeline
from mmspec.bench.answers import correctness
from mmspec.models.loading import EMBEDDED
from mmspec.vlm.items import QUESTIONS, Item, read_items

FOLDER = EMBEDDED / "tiny-vlm"
ITEMS = read_items(FOLDER / QUESTIONS)


def items_of(task: str, count: int) -> list[Item]:
    return [item for item in ITEMS if item.task == task][:count]


@pytest.fixture(scope="module")
def pipe() -> VisionLanguagePipeline:
    made = VisionLanguagePipeline.from_pretrained("mmspec/tiny-vlm")
    made.set_progress_bar_config(disable=True)
    return made


def test_files_are_small_and_licensed() -> None:
    assert max(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 12_000_000
    assert "Twemoji" in (FOLDER / "NOTICE").read_text()
    assert {item.task for item in ITEMS} == {"json", "name", "read"}
    for path in FOLDER.rglob("*.json"):
        assert '"_name_or_path": "/' not in path.read_text()  # the folder of a training run is nobody's business


def test_it_reads_lines_that_it_never_saw(pipe: VisionLanguagePipeline) -> None:
    items = items_of("read", 12)
    texts = pipe([item.prompt for item in items], [item.images[0] for item in items], max_new_tokens=32).texts
    truths = [str(item.answer) for item in items]
    assert correctness(texts or [], truths)["accuracy"] >= 0.8
    assert correctness(texts or [], truths[1:] + truths[:1])["accuracy"] == 0  # not the same answer for every line


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_pay_and_change_no_token(pipe: VisionLanguagePipeline, temperature: float) -> None:
    items = items_of("read", 3) + items_of("json", 2) + items_of("name", 2)
    asked = {"max_new_tokens": 96, "temperature": temperature, "seed": 4}
    forwards = {True: 0, False: 0}
    for item in items:
        outputs = {way: pipe(item.prompt, item.images[0], speculate=way, **asked) for way in forwards}
        assert outputs[True].texts == outputs[False].texts
        for way, output in outputs.items():
            forwards[way] += output.stats.forwards
    assert forwards[False] >= 3 * forwards[True]
    together = pipe([item.prompt for item in items], [item.images[0] for item in items], **asked)
    alone = [
        pipe(item.prompt, item.images[0], **{**asked, "seed": asked["seed"] + row}) for row, item in enumerate(items)
    ]
    assert together.texts == [output.texts[0] for output in alone if output.texts]


def test_the_eagle_head_fits_and_changes_no_token(pipe: VisionLanguagePipeline) -> None:
    head = Eagle3Drafter.from_pretrained(FOLDER / Eagle3Drafter.folder)
    head.check_target(pipe.model)
    [item] = items_of("read", 1)
    own = pipe.drafter
    try:
        pipe.drafter = head
        drafted = pipe(item.prompt, item.images[0], max_new_tokens=32)
    finally:
        pipe.drafter = own
    plain = pipe(item.prompt, item.images[0], max_new_tokens=32, speculate=False)
    assert drafted.texts == plain.texts
    assert drafted.stats.forwards < plain.stats.forwards


def test_the_card_says_what_was_measured() -> None:
    card = (FOLDER / "README.md").read_text()
    for name, score in json.loads((FOLDER / "training.json").read_text())["measured"].items():
        assert f"| {name.replace('_', ' ')} | {score['exact']:.1%} | {score['cer']:.1%} |" in card
