"""What is published: wheel and sdist build, hold the checkpoints, are small, and work in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 90_000_000  # bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree, and the wheel built from that sdist."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def checkpoint_files() -> set[str]:
    """Every file of the embedded checkpoints that is under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "mmspec/checkpoints"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return {name for name in listed if name}


def test_the_wheel_is_small_and_holds_every_checkpoint(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert wheel.stat().st_size < LARGEST
    names = set(zipfile.ZipFile(wheel).namelist())
    assert checkpoint_files() <= names
    assert {
        "mmspec/image/__init__.py",
        "mmspec/vlm/__init__.py",
        "mmspec/pipelines/__init__.py",
        "mmspec/py.typed",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "demos/", "docs/", "image/"))]


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    assert sdist.stat().st_size < LARGEST
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert checkpoint_files() | {"LICENSE", "README.md", "pyproject.toml", "image/__init__.py"} <= names


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment that has the wheel, and this one's libraries, but not this checkout."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    [wheel] = dist.glob("*.whl")
    done = run(scripts, folder, "python", "-m", "pip", "install", "-q", "--no-deps", str(wheel))
    assert done.returncode == 0, done.stderr
    own = run(
        scripts, folder, "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    ).stdout.strip()
    (Path(own) / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return scripts


def run(scripts: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the environment in ``folder``, where nothing leads to this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [scripts / words[0], *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_doctor_is_clean_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    where = run(clean, tmp_path, "python", "-c", "import mmspec; print(mmspec.__file__)").stdout.strip()
    assert str(clean.parent) in where
    done = run(clean, tmp_path, "mmspec", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Everything that is installed works." in done.stdout
    assert "mmspec/emoji-t2i" in done.stdout


def test_a_picture_is_made_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    done = run(clean, tmp_path, "mmspec", "image", "red apple, noto style", "--seed", "1", "--out", "a.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 0
