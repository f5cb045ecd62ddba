"""Print a software bill of materials (CycloneDX 1.6, JSON) of the environment that `make env` makes.

Versions and hashes come from locks/. The installed metadata say which packages our own dependencies reach; the
others, which only tests need, have scope "excluded". The same locks give the same bytes: there is no time in it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

LOCKS = Path(__file__).resolve().parent
PIN = re.compile(r"(?m)^([\w.-]+)==([^\s;]+)((?:.*\\\n)*.*)$")


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def reached(roots: list[str]) -> set[str]:
    """The packages that requirements need, directly or through others, extras left out."""
    found: set[str] = set()
    todo = [text for text in roots if "extra ==" not in text]
    while todo:
        name = normalized(re.match(r"[\w.-]+", todo.pop())[0])
        if name not in found:
            found.add(name)
            try:
                todo += [text for text in requires(name) or () if "extra ==" not in text]
            except PackageNotFoundError:  # of another platform
                continue
    return found


def component(name: str, version: str, hashes: list[str], needed: set[str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{normalized(name)}@{version.replace('+', '%2B')}"
    files = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "scope": "required" if normalized(name) in needed else "excluded",
        "purl": purl,
        # of all files of this version: pip accepts any one of them
        "externalReferences": [{"type": "distribution", "url": purl, "hashes": files}],
    }


def sbom() -> dict[str, Any]:
    project = tomllib.loads((LOCKS.parent / "pyproject.toml").read_text())["project"]
    needed = {*reached(project["dependencies"]), "crypten"}  # setup.py unpacks crypten into our wheel
    pins = [
        (name, version, re.findall(r"sha256:(\w+)", rest))
        for file in ("requirements.txt", "torch-cpu.txt")
        for name, version, rest in PIN.findall((LOCKS / file).read_text())
    ]
    parts = [component(*pin, needed) for pin in sorted(pins)]
    own = {"type": "library", "name": project["name"], "version": project["version"]}
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, parts]))}",
        "version": 1,
        "metadata": {"component": {**own, "bom-ref": purl, "purl": purl}},
        "components": parts,
    }


if __name__ == "__main__":
    json.dump(sbom(), sys.stdout, indent=1)
