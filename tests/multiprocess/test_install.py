"""Plain pip installs the source folder, the source archive and the wheel, and users' own files break nothing.

`pip install` needs a package registry: for the dependencies, and for setuptools, because pip builds in isolation.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = "raise SystemExit('a file of the user was imported')\n"
TRAINS = """
import secure_sccvfl as scc
model = scc.train(scc.load("german"), epsilon=8, seed=0)
print("accuracy", model.evaluate().value["acc"])
"""


def ran(*words: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def from_folder(source: Path) -> Path:
    return source


def from_archive(source: Path) -> Path:
    ran(sys.executable, "-c", "from setuptools.build_meta import build_sdist as b; b('dist')", cwd=source)
    (archive,) = source.glob("dist/*.tar.gz")
    return archive


def from_wheel(source: Path) -> Path:
    ran(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", ".", cwd=source)
    (wheel,) = source.glob("dist/*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.parametrize("made", [from_folder, from_archive, from_wheel])
def test_plain_pip_installs_and_files_of_the_user_break_nothing(made: Callable[[Path], Path], tmp_path: Path) -> None:
    source, venv, here = tmp_path / "source", tmp_path / "venv", tmp_path / "here"
    ran("git", "archive", "--output", tmp_path / "source.tar", "HEAD", cwd=ROOT)
    with tarfile.open(tmp_path / "source.tar") as archive:
        archive.extractall(source, filter="data")
    ran(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    ran(venv / "bin/python", "-m", "pip", "install", made(source), cwd=tmp_path)

    (site,) = venv.glob("lib/python*/site-packages")
    taken = {"accounting", "protocols", "launch", "crypten", "configs", "test"}
    assert taken & {path.name for path in site.iterdir()} == set()
    assert (site / "secure_sccvfl" / "bundled" / "crypten-0.4.1.dist-info" / "LICENSE").is_file()

    here.mkdir()
    for name in ("accounting", "launch", "protocols"):
        (here / f"{name}.py").write_text(OWN)
    python, sccvfl = venv / "bin" / "python", venv / "bin" / "sccvfl"
    version = ran(sccvfl, "--version", cwd=here)
    assert version.startswith("secure-sccvfl ")
    assert ran(python, "-m", "secure_sccvfl", "--version", cwd=here) == version
    assert "accuracy 0." in ran(python, "-c", TRAINS, cwd=here)
    ran(sccvfl, "run", "--dataset", "german", "--parties", "2", "--no-harness", "--out", "runs/a", cwd=here)
    assert "<html" in (here / "runs" / "a" / "report.html").read_text(encoding="utf-8")[:500]
    assert "can be trusted" in ran(sccvfl, "audit", "verify", "runs/a", cwd=here)
