"""The files of the guides work: by themselves, and as a part of mmspec after the edits that the guides state."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.reading import DOCS, PAGES, ROOT, blocks

#: example -> the guide that shows it, and where the guide puts it
EXAMPLES = {
    "mixture": ("new-rule", "mmspec/acceptance/mixture.py"),
    "period": ("new-drafter", "mmspec/drafters/period.py"),
    "pixels": ("new-model", "pipelines/pixels.py"),
}


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_drafter_repeats_plain_decoding_in_fewer_forwards(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    load("period").main(tmp_path)
    forwards = [int(found) for found in re.findall(r"tokens in (\d+) forwards", capsys.readouterr().out)]
    assert forwards[0] < forwards[1]


def test_the_rule_keeps_its_bound() -> None:
    load("mixture").main()


def test_the_model_decodes_alone_as_in_a_batch(tmp_path: Path) -> None:
    load("pixels").main(tmp_path)


def test_a_target_without_a_period_is_refused() -> None:
    import torch

    from mmspec.drafters.base import DraftSetup

    with pytest.raises(ValueError, match="NGramDrafter"):
        load("period").PeriodDrafter().session(DraftSetup(1, 8, torch.device("cpu"), 4))


def test_every_file_that_a_page_shows_is_tested() -> None:
    shown = {block.included for page in PAGES for block in blocks(page.read_text()) if block.included}
    tested = {DOCS / "examples" / f"{name}.py" for name in EXAMPLES} | {
        ROOT / "tests" / "docs" / "test_mixture_law.py"
    }
    assert shown == tested
    assert set((DOCS / "examples").glob("*.py")) <= tested


def added_lines(guide: str) -> tuple[str, list[str]]:
    """The file that a guide edits, and the lines that it adds to its table."""
    (diff,) = [block for block in blocks((DOCS / "guides" / f"{guide}.md").read_text()) if block.language == "diff"]
    first, *lines = diff.code.splitlines()
    assert all(line.startswith("+") for line in lines)
    return first.removeprefix("--- "), [line[1:] for line in lines]


def project_with_examples(folder: Path) -> Path:
    """A copy of the project's code with the edits of the guides; the checkpoints are the real ones."""
    for part in ("mmspec", "image", "speech", "vlm", "pipelines"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", *CHECKPOINT_FOLDERS))
    for name in CHECKPOINT_FOLDERS:
        (folder / "mmspec" / "checkpoints" / name).symlink_to(ROOT / "mmspec" / "checkpoints" / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, (guide, place) in EXAMPLES.items():
        shutil.copy(DOCS / "examples" / f"{name}.py", folder / place)
        file, lines = added_lines(guide)
        text = (folder / file).read_text()
        end = "    },\n)\n" if "    },\n)\n" in text else '    "ModelMixin": "diffusers",\n'
        assert text.count(end) == 1
        (folder / file).write_text(text.replace(end, "\n".join(lines) + "\n" + end))
    return folder


CHECKPOINT_FOLDERS = [path.parent.name for path in (ROOT / "mmspec" / "checkpoints").glob("*/model_index.json")]

CHILD = """
import json, sys, tempfile
from pathlib import Path
import torch
import mmspec
from mmspec.cli.app import app
from typer.testing import CliRunner

folder = Path(sys.argv[1])
torch.manual_seed(0)
pipe = mmspec.PixelPipeline(mmspec.PixelTransformer(), mmspec.PeriodDrafter(5), mmspec.MixtureAcceptance(0.3))
try:
    pipe([1], seed=3)
except ValueError as error:
    refused = str(error)
pipe.acceptance = None
pipe.save_pretrained(folder / "pixels")
again = mmspec.SpecPipeline.from_pretrained(folder / "pixels")
again.acceptance = mmspec.MixtureAcceptance(0.3)
again.save_pretrained(folder / "both")
both = mmspec.SpecPipeline.from_pretrained(folder / "both")
shown = CliRunner().invoke(app, ["image", "x", "--drafter", "no-such-drafter"])
result = {
    "file": mmspec.__file__, "refused": refused, "pipeline": type(again).__name__,
    "equal": pipe([1, 2], seed=3).tokens.tolist() == again([1, 2], seed=3, speculate=False).tokens.tolist(),
    "drafter": [type(both.drafter).__module__, both.drafter.config.num_draft_tokens],
    "rule": [type(both.acceptance).__module__, both.acceptance.config.share], "names": shown.output,
}
print("RESULT" + json.dumps(result))
"""


@pytest.mark.slow
def test_the_edits_of_the_guides_make_the_examples_a_part_of_mmspec(tmp_path: Path) -> None:
    project = project_with_examples(tmp_path / "project")
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, cwd=project, env=environment(project), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.split("RESULT")[1])
    assert Path(result["file"]).is_relative_to(project)
    assert "DETERMINISTIC".lower() in result["refused"]  # the rule wants a law that this drafter has not
    assert result["pipeline"] == "PixelPipeline"
    assert result["equal"]
    assert result["drafter"] == ["mmspec.drafters.period", 5]
    assert result["rule"] == ["mmspec.acceptance.mixture", 0.3]
    assert "period" in result["names"]


def environment(project: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"}
