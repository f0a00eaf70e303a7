"""``mmspec ask``: answers on standard output, figures beside, and errors before the model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmspec.cli.app import app
from tests.oracles.saved_vlm import picture, save_tiny_reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return save_tiny_reader(tmp_path_factory.mktemp("model") / "vlm")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    picture().save(tmp_path / "line.png")
    return tmp_path / "line.png"


def run(folder: Path, *arguments: Any) -> Any:
    words = ["ask", *map(str, arguments), "--model", str(folder), "--device", "cpu", "--max-new-tokens", "12"]
    return CliRunner().invoke(app, words)


def test_the_answer_is_that_of_plain_decoding(folder: Path, image: Path) -> None:
    for sampling in ((), ("--temperature", 1, "--seed", 5)):
        done = run(folder, image, "read the text", *sampling)
        assert done.exit_code == 0, done.output
        plain = run(folder, image, "read the text", "--plain", *sampling)
        assert done.stdout == plain.stdout
        assert len(done.stdout.rstrip("\n")) == 12
        assert "block+coupled [SAME_TOKENS]" in done.stderr
        assert "plain [SAME_TOKENS]" in plain.stderr
    drawn = [run(folder, image, "read", "--temperature", 1, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_parts_of_the_method_can_be_chosen(folder: Path, image: Path) -> None:
    wanted = run(folder, image, "read the text").stdout
    for method in (("--drafter", "ngram"), ("--set", "drafter.tree=chain", "--set", "drafter.block_size=6")):
        done = run(folder, image, "read the text", *method)
        assert (done.exit_code, done.stdout) == (0, wanted), done.output
    stopped = run(folder, image, "read the text", "--stop", wanted[3:6])
    assert stopped.stdout == wanted.partition(wanted[3:6])[0] + "\n"


def test_json_by_keys_and_by_schema(folder: Path, image: Path, tmp_path: Path) -> None:
    """The random model's answers are cut after 12 tokens; what is fixed by then is there."""
    done = run(folder, image, "what is it?", "--json", "title,kind")
    assert (done.exit_code, done.stdout[:11]) == (0, '{"title": "'), done.output
    assert run(folder, image, "what is it?", "--json", "title,kind", "--plain").stdout == done.stdout
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"kind": {"enum": ["animal", "food"]}}}')
    assert run(folder, image, "what is it?", "--json", schema).stdout.startswith('{"kind": "')
    for wrong in ("title,,kind", "missing.json"):
        assert run(folder, image, "what is it?", "--json", wrong).exit_code == 2


def test_several_pictures(folder: Path, image: Path, tmp_path: Path) -> None:
    picture(1).save(tmp_path / "other.png")
    done = run(folder, image, "compare", "--image", tmp_path / "other.png")
    assert done.exit_code == 0, done.output
    assert done.stdout != run(folder, image, "compare").stdout


def test_files_are_pictures_or_videos_by_their_endings(folder: Path, image: Path, tmp_path: Path) -> None:
    from mmspec.cli.ask import sorted_out

    files = [Path("a.png"), Path("b.MP4"), Path("c.gif"), Path("d.webm")]
    assert sorted_out(files) == ([files[0], files[2]], [files[1], files[3]])
    assert sorted_out(files[:1]) == (files[:1], None)
    clip = tmp_path / "clip.mp4"
    clip.touch()
    done = run(folder, image, "what happens?", "--image", clip)
    assert (done.exit_code, "LlavaProcessor reads no videos" in " ".join(done.output.split())) == (2, True), (
        done.output
    )


def test_wrong_calls(folder: Path, image: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    for words, message in (
        ((tmp_path / "missing.png", "read"), "There is no picture"),
        ((tmp_path / "empty.png", "read"), "empty file"),
        ((image, "read", "--plain", "--drafter", "ngram"), "--plain"),
        ((image, "read", "--temperature", -1), "temperature"),
        ((image,), "QUESTION"),
    ):
        done = run(folder, *words)
        assert (done.exit_code, message in done.output) == (2, True), done.output
