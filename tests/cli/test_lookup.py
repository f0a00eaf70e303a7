"""``mmspec models`` and ``mmspec doctor``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mmspec.cli import doctor
from mmspec.cli.models import describe_folder
from mmspec.image.llamagen_configs import RELEASED


def test_models_lists_every_released_file(mmspec):
    result = mmspec("models")
    assert result.exit_code == 0
    assert all(checkpoint.file in result.stdout for checkpoint in RELEASED.values())


def test_models_describes_a_checkpoint(tiny):
    pipeline, drafter, rule, guarantee, _, _ = describe_folder(Path(tiny))
    assert (pipeline, drafter, guarantee) == ("LlamaGenPipeline", "JacobiDrafter", "SAME_TOKENS")
    assert "coupled" in rule


def test_doctor_finds_nothing_broken_here(mmspec):
    result = mmspec("doctor")
    assert result.exit_code == 0, result.stdout
    assert "threads" in result.stdout


def test_doctor_reads_the_tested_ranges():
    assert ">=5.20" in doctor.tested_ranges()["transformers"]


def test_doctor_names_a_mismatched_pair_and_the_fix(mmspec, monkeypatch):
    def fail(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(code, 1, "", "Traceback ...\nOSError: undefined symbol: aoti")

    monkeypatch.setattr(doctor, "run_python", fail)
    result = mmspec("doctor")
    assert result.exit_code == 1
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "undefined symbol: aoti" in text
    assert "pip install --force-reinstall torch torchaudio" in text


def test_doctor_checks_a_checkpoint(tiny):
    assert doctor.check_folder("tiny", Path(tiny)).state == "ok"


@pytest.mark.parametrize("content", ["{}", "{", '{"hidden_size": 64}'])
def test_doctor_finds_a_damaged_checkpoint(tiny, tmp_path, content):
    import shutil

    broken = Path(shutil.copytree(tiny, tmp_path / "broken"))
    (broken / "transformer" / "config.json").write_text(content)
    check = doctor.check_folder("broken", broken)
    assert check.state == "broken"
    assert "transformer" in check.detail


def test_doctor_notes_versions_outside_the_range(monkeypatch):
    monkeypatch.setattr(doctor, "tested_ranges", lambda: {"torch": ">=99"})
    [torch] = [check for check in doctor.check_packages() if check.name == "torch"]
    assert torch.state == "note"
    assert ">=99" in torch.detail
