"""Neighbour tables: right order, of the codebook as used, cached by content, rebuilt when the cache is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.image import neighbours
from mmspec.image.neighbours import codebook_hash, load_table, nearest_codes, neighbour_table, save_table


def codebook(size: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))


def test_neighbours_are_ordered_by_distance_and_leave_out_the_code_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", 40)  # several blocks
    rows = codebook()
    table = nearest_codes(rows, 11)
    for code in range(12):
        others = sorted((float((rows[code] - rows[o]).norm()), o) for o in range(12) if o != code)
        assert table[code].tolist() == [other for _, other in others]


def test_equal_distances_go_to_the_lower_code() -> None:
    rows = torch.tensor([[0.0], [1.0], [-1.0], [0.0], [1.0]])
    assert nearest_codes(rows, 9)[0].tolist() == [3, 1, 2, 4]
    assert nearest_codes(rows, 2)[4].tolist() == [1, 0]
    many_twins = torch.zeros(100, 2)  # more equal ones than the search takes at first
    many_twins[0] = 1
    assert nearest_codes(many_twins, 3)[50].tolist() == [1, 2, 3]
    assert nearest_codes(many_twins, 3)[1].tolist() == [2, 3, 4]


def test_tables_are_those_of_the_rows_as_the_model_uses_them(golden: Path) -> None:
    """LlamaGen normalises its rows on use; the neighbours of the raw rows are others in every row."""
    stored = load_file(golden / "llamagen" / "vq_tiny_io.safetensors")
    raw = load_file(golden / "llamagen" / "vq_tiny_weights.safetensors")["quantize.embedding.weight"]
    used = torch.nn.functional.normalize(raw, dim=-1)
    assert torch.equal(nearest_codes(used, 31).long(), stored["nearest_by_normalised"].long())
    assert torch.equal(nearest_codes(raw, 31).long(), stored["nearest_by_raw"].long())


def test_a_table_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = neighbour_table(codebook(), 5, tmp_path / "new" / "folder")
    monkeypatch.setattr(neighbours, "nearest_codes", lambda *_: pytest.fail("computed again"))
    assert torch.equal(neighbour_table(codebook(), 5, tmp_path / "new" / "folder"), first)
    assert [file.suffix for file in (tmp_path / "new" / "folder").iterdir()] == [".safetensors"]


def test_another_codebook_or_width_has_its_own_file(tmp_path: Path) -> None:
    for rows, count in ((codebook(), 5), (codebook(), 6), (codebook(seed=1), 5)):
        assert torch.equal(neighbour_table(rows, count, tmp_path), nearest_codes(rows, count))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "other", "misshapen", "wild"])
def test_a_damaged_cache_is_rebuilt(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = codebook()
    right = neighbour_table(rows, 5, tmp_path)
    [file] = tmp_path.iterdir()
    digest = {"codebook": codebook_hash(rows)}
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-7])
    elif damage == "garbage":
        file.write_bytes(b"\xff" * 200)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "other":
        save_table(nearest_codes(codebook(seed=1), 5), codebook(seed=1), file)
    elif damage == "misshapen":
        save_file({"neighbours": right[:, :3].contiguous()}, file, metadata=digest)
    else:
        save_file({"neighbours": right + 50}, file, metadata=digest)
    with caplog.at_level(logging.WARNING, logger="mmspec"):
        assert torch.equal(neighbour_table(rows, 5, tmp_path), right)
    assert "Rebuilding" in caplog.text
    assert torch.equal(load_table(file, rows), right)


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with caplog.at_level(logging.WARNING, logger="mmspec"):
        assert neighbour_table(codebook(), 5, blocked).shape == (12, 5)
    assert "cache" in caplog.text.lower()


def test_a_failed_write_leaves_the_old_table_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = codebook()
    file = tmp_path / "table.safetensors"
    save_table(nearest_codes(rows, 5), rows, file)
    before = file.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_table(nearest_codes(rows, 6), rows, file)
    assert file.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.safetensors"]


def test_the_hash_knows_values_and_shape() -> None:
    rows = codebook()
    hashes = {codebook_hash(rows), codebook_hash(rows.view(6, 8)), codebook_hash(rows + 1e-6)}
    assert len(hashes) == 3
    assert codebook_hash(rows) == codebook_hash(rows.clone().double())
