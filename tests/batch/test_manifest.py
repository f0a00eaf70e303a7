"""Manifests: every form, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmspec.batch.manifest import read_manifest
from mmspec.batch.tasks import TASKS, ImageTask

IMAGE = ImageTask.columns


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_three_forms_agree(tmp_path: Path) -> None:
    forms = [
        written(tmp_path, "a.jsonl", '{"prompt": "cat", "top_k": 5}\n\n{"prompt": "cat", "seed": 9, "top_k": null}\n'),
        written(tmp_path, "a.csv", "prompt,seed,top_k\ncat,,5\ncat,9,\n"),
    ]
    for path in forms:
        one, two = read_manifest(path, IMAGE, "prompt", seed=3)
        assert (one.values, one.seed) == ({"prompt": "cat", "top_k": 5}, 3)
        assert (two.values, two.seed) == ({"prompt": "cat"}, 9)
        assert one.id != two.id  # equal prompts are distinct rows
    plain = read_manifest(written(tmp_path, "a.txt", "\ufeffcat\n\n  dog \n"), IMAGE, "prompt", seed=3)
    assert [(row.id, row.seed, row.values["prompt"]) for row in plain] == [("0001", 3, "cat"), ("0003", 4, "dog")]


def test_files_lie_beside_the_manifest(tmp_path: Path) -> None:
    task = TASKS["transcribe"]
    [row] = read_manifest(written(tmp_path, "m.jsonl", '{"audio": "a.wav"}'), task.columns, task.main)
    assert row.values["audio"] == str(tmp_path / "a.wav")
    with pytest.raises(FileNotFoundError, match=r"`audio` names .*a\.wav"):
        task({}, {}).check(row)


def test_it_does_not_matter_from_where_a_manifest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job goes on after a change of folder: a row is what the manifest says, not where that lies."""
    task = TASKS["transcribe"]
    path = written(tmp_path, "m.jsonl", '{"audio": "sub/a.wav", "segment_seconds": 2.5}')
    monkeypatch.chdir(tmp_path)
    [absolute], [relative] = (read_manifest(p, task.columns, task.main) for p in (path, Path("m.jsonl")))
    assert absolute.values != relative.values
    assert absolute.fingerprint == relative.fingerprint
    assert absolute.given == {"audio": "sub/a.wav", "segment_seconds": 2.5}
    [other] = read_manifest(written(tmp_path, "o.jsonl", '{"audio": "b.wav"}'), task.columns, task.main)
    assert other.fingerprint != absolute.fingerprint


BAD = [
    ("m.jsonl", "", "no rows"),
    ("m.jsonl", "[1]", "must be an object"),
    ("m.jsonl", '{"prompt": ', "line 1 of the manifest is no JSON"),
    ("m.jsonl", '{"prompt": "a", "topk": 1}', "line 1: unknown column 'topk'; legal are id, seed, prompt"),
    ("m.jsonl", '{"prompt": ["a"]}', "must be text"),
    ("m.jsonl", '{"prompt": "a", "top_k": 1.5}', "must be an integer"),
    ("m.jsonl", '{"prompt": "a", "top_k": true}', "must be an integer"),
    ("m.csv", "prompt,top_k\na,many\n", "line 2: `top_k` is 'many'"),
    ("m.csv", "prompt,top_k\na\n", "another number of cells"),
    ("m.jsonl", '{"prompt": "a", "seed": -1}', "between 0 and"),
    ("m.jsonl", '{"prompt": "a", "id": "../b"}', "it names a file"),
    ("m.jsonl", '{"prompt": "a", "id": "a/b"}', "it names a file"),
    ("m.jsonl", '{"prompt": "a", "id": ".b"}', "it names a file"),
    ("m.jsonl", '{"prompt": "a", "id": "nul.x"}', "it names a file"),
    ("m.jsonl", '{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "X"}', "lines 1 and 2: both have the id"),
    ("m.yaml", "prompt: a", "ends with .jsonl, .csv, .txt"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_mistakes_are_told_with_their_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){said.replace('.', '[.]')}"):
        read_manifest(written(tmp_path, name, text), IMAGE, "prompt")


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_manifest(tmp_path / "none.jsonl", IMAGE, "prompt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no UTF-8"):
        read_manifest(tmp_path / "bytes.txt", IMAGE, "prompt")
    speak = TASKS["speak"]
    with pytest.raises(ValueError, match="`text` is missing"):
        read_manifest(written(tmp_path, "m.csv", "seed\n1\n"), speak.columns, speak.main)
