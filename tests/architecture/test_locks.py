"""The lock files fit pyproject.toml and each other, and pin every package to its hashes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.txt", "torch.txt", "torch-cpu.txt", "engines.txt", "peers.txt", "docs.txt")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package of a lock file."""
    text = re.sub(r"(?m)^#.*$", "", (ROOT / "locks" / name).read_text()).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    pins = [(re.match(r"([\w.-]+)==([^\s;]+)", line), line.count("--hash=sha256:")) for line in lines]
    assert all(pin is not None for pin, _ in pins), f"{name} has a line without a version"
    return {canonicalize_name(pin[1]): (pin[2], hashes) for pin, hashes in pins if pin is not None}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes_and_no_address(name: str) -> None:
    assert locked(name) and all(hashes for _, hashes in locked(name).values())
    assert "://" not in (ROOT / "locks" / name).read_text()


def test_what_the_project_asks_for_is_locked() -> None:
    """pyproject.toml changed and `make lock` did not run, if this fails."""
    project = PROJECT["project"]
    versions = {**locked("torch.txt"), **locked("requirements.txt")}
    overrides = [
        text for package in PROJECT["tool"]["uv"]["dependency-metadata"] for text in package["requires-dist"]
    ]
    for text in [*project["dependencies"], *project["optional-dependencies"]["test"], *overrides]:
        wanted = Requirement(text)
        version, _ = versions[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{text} is locked to {version}"
    engines = locked("engines.txt")
    for extra in ("flare", "mlflow", "ray"):
        (wanted,) = map(Requirement, project["optional-dependencies"][extra])
        assert wanted.specifier.contains(engines[canonicalize_name(wanted.name)][0]), f"{wanted}: run `make lock`"
    assert {name for name in engines.keys() & versions if engines[name] != versions[name]} == set()
    for group, wants in PROJECT["dependency-groups"].items():
        for wanted in map(Requirement, wants):
            pins = versions if group == "engine" else locked(f"{group}.txt")
            version, _ = pins[canonicalize_name(wanted.name)]
            assert wanted.specifier.contains(version), f"{wanted} is locked to {version}"


def test_torch_is_one_version_and_cuda_comes_with_the_other_build_only() -> None:
    cpu, registry, rest = locked("torch-cpu.txt"), locked("torch.txt"), locked("requirements.txt")
    version = registry["torch"][0]
    assert f"torch=={version}" in PROJECT["project"]["dependencies"] and cpu["torch"][0] == f"{version}+cpu"
    versions = {package["name"]: package["version"] for package in PROJECT["tool"]["uv"]["dependency-metadata"]}
    assert versions["torch"] == version
    assert list(cpu) == ["torch"] and "torch" not in rest
    assert not [name for name in rest if name.startswith(("nvidia", "cuda", "triton"))]
    for name in registry.keys() & rest:
        assert registry[name][0] == rest[name][0]


def test_the_crypten_that_a_wheel_brings_is_the_locked_one() -> None:
    """setup.py unpacks the file in locks/ into our wheel, since pip cannot install it from its metadata."""
    wheel = ROOT / "locks" / "crypten-0.4.1-py3-none-any.whl"
    pins = (ROOT / "locks" / "requirements.txt").read_text().partition("crypten==0.4.1")[2].partition("==")[0]
    assert f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" in pins
    with zipfile.ZipFile(wheel) as held:
        assert "crypten-0.4.1.dist-info/LICENSE" in held.namelist()


def test_the_bill_of_materials_has_every_locked_package_with_its_hashes() -> None:
    program = [sys.executable, ROOT / "locks" / "sbom.py"]
    first, second = (subprocess.run(program, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    bill = json.loads(first)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]
    listed = {part["name"]: part for part in bill["components"]}
    assert {
        name: (part["version"], sum(len(file["hashes"]) for file in part["externalReferences"]))
        for name, part in listed.items()
    } == {**locked("requirements.txt"), **locked("torch-cpu.txt")}
    assert len({part["bom-ref"] for part in bill["components"]}) == len(listed) == len(bill["components"])
    assert {listed[name]["scope"] for name in ("torch", "crypten", "numpy", "cffi")} == {"required"}
    assert {listed[name]["scope"] for name in ("pytest", "ruff", "adversarial-robustness-toolbox")} == {"excluded"}


def test_versions_agree() -> None:
    """Of the package, the changelog, the citation, and of Python in the locks, the image and the classifiers."""
    project = PROJECT["project"]
    assert f"\n## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    (python,) = set(re.findall(r"--python-version (\S+)", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"(?m)^FROM python:([\d.]+)-slim", (ROOT / "deploy" / "Containerfile").read_text())) == {
        python
    }
    assert project["requires-python"] == f">={python}"
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
