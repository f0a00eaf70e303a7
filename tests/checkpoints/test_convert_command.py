"""``mmspec convert llamagen`` and a picture from what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli.app import app
from mmspec.cli.convert import parse_size


def mmspec(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def files(class_state, vq_state, tmp_path):
    torch.save({"model": class_state}, tmp_path / "decoder.pt")
    torch.save({"model": vq_state}, tmp_path / "vq.pt")
    return tmp_path / "decoder.pt", tmp_path / "vq.pt"


def test_converted_files_make_pictures(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mmspec("convert", "llamagen", *files, "model", "--image-size", "6x10", "--num-heads", 2)
    assert result.exit_code == 0, result.stderr
    assert "mmspec image --model model --class-label" in result.stdout
    words = ("--temperature", 1, "--top-k", 0, "--class-label", 3, "--drafter", "jacobi")
    result = mmspec("image", "--model", "./model", *words)
    assert result.exit_code == 0, result.stderr
    assert Path("outputs/3-0001.png").is_file()


def test_wrong_calls(files, tmp_path):
    out = tmp_path / "model"
    for words, message in [
        ((*files, out, "--image-size", "big"), "256x384"),
        ((files[0], tmp_path / "none.pt", out, "--image-size", "6"), "does not exist"),
        ((files[1], files[1], out, "--image-size", "6"), "no LlamaGen decoder"),
        ((*files, tmp_path, "--image-size", "6"), "not an empty folder"),
    ]:
        result = mmspec("convert", "llamagen", *words)
        assert result.exit_code == 2
        assert message in result.stderr
        assert not out.exists()


def test_image_sizes():
    assert parse_size("256") == 256
    assert parse_size("256x384") == (256, 384)
