"""A consortium of three with certificates, own data, a card, and a session file that pins."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import SessionConfig, node_folder
from secure_sccvfl.protocols.net.certificates import Authority, Credentials, install, make_request, members, pinned
from tests.support.own_data import heart_rows, write_own

CARD = {
    "dataset": "heart of our own",
    "version": "1",
    "owners": ["board"],
    "decisions": {"chol": {"role": "M", "reason": "follows from s", "evidence": "guideline: some"}},
}
SESSION = """parties = ["a.example:7100", "b.example:7100", "c.example:7100"]
names = ["hospital", "clinic", "payer"]
jobs = ["selftest", "train", "evaluate"]

[options]
dataset = "own.toml"
card = "card.json"
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of all hosts in one; the authority's is next to it."""
    folder = tmp_path_factory.mktemp("keys")
    authority = Authority.create(folder / "authority")
    names = [node_folder(node, 3) for node in range(4)]
    requests = [make_request(folder / "certs", name, name)[0] for name in names]
    for _, issued in authority.sign(requests):
        install(issued, authority.folder / "ca.pem", folder / "certs")
    return folder / "certs"


@pytest.fixture
def desk(tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's working folder."""
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path, heart_rows())
    (tmp_path / "card.json").write_text(json.dumps(CARD))
    (tmp_path / "session.toml").write_text(pinned(SESSION, members(certificates)))
    return tmp_path


@pytest.fixture
def config(desk: Path) -> SessionConfig:
    return SessionConfig.load(desk / "session.toml")


def credentials_of(certificates: Path, rank: int) -> Credentials:
    return Credentials.of(certificates, f"party-{rank}")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (old, text)
    path.write_text(text.replace(old, new))


def rows_of(path: Path) -> int:
    with path.open() as file:
        return len(list(csv.DictReader(file)))
