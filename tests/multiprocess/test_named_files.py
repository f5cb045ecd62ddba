"""Every file that a command writes into a user's folder is named in its --help."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import secure_sccvfl as scc
from secure_sccvfl.launch.cli import COMMANDS
from tests.multiprocess.named_files import help_of, unnamed
from tests.multiprocess.programs import run_here

LOCAL = (
    "init bank.csv --party bank --label late",
    "init bureau.csv --party bureau --duplicates first",
    "init employer.csv --party employer --protected from_25",
    "init --merge draft-bank.toml draft-bureau.toml draft-employer.toml --name loans --session session.toml",
    "check loans.toml --party bank",
    "certs request certs --member party-0 --name bank",
    "certs authority authority",
    "certs sign certs/request-party-0.pem --authority authority",
    "certs install authority/issued/party-0.pem authority/ca.pem certs",
    "certs request certs --member party-0 --name bank --renew",
    "certs test",
    "plan session.toml --out plan.json",
    "policy key --key board.pem",
    "report run",
    "explain run --record g0374",
    "audit verify run",
    "privacy run --out budget",
    "policy appeal run --feature housing --who w --text t --wants N",
    "runs run",
    "export modelcard run",
    "export intoto run --certs test --rank 0",
)
"""Commands of one host, in an order in which each finds what it needs."""
ELSEWHERE = {
    **dict.fromkeys(
        ("run", "predict", "discovery", "selftest", "attack"), "a session: the next test, and test_train"
    ),
    **dict.fromkeys(
        ("party", "dealer", "preflight", "approve", "kit", "serve", "flare"), "several hosts: test_hosts"
    ),
    **dict.fromkeys(("reproduce", "bench", "raise-cap"), "only files that the command line names"),
}
"""Commands that no line above runs."""


def files(folder: Path) -> dict[Path, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def written(work: Callable[[], None], folder: Path) -> set[Path]:
    """The files that a piece of work makes or changes, and the folders of new ones."""
    before = files(folder)
    work()
    changed = {path for path, digest in files(folder).items() if before.get(path) != digest}
    return changed | {one for path in changed - before.keys() for one in path.parents if one.name}


@pytest.fixture
def here(tmp_path: Path, run: Path) -> Path:
    for party, frame in scc.load("german").frames.items():
        table = frame.rename(columns={"y": "late", "s": "from_25"})
        (table if party != "bureau" else table.iloc[[0, *range(len(table))]]).to_csv(tmp_path / f"{party}.csv")
    return tmp_path


def test_commands_of_one_host_write_what_their_help_names(here: Path) -> None:
    for line in LOCAL:
        words = line.split()

        def work(words: list[str] = words) -> None:
            ran = run_here("cli", *words, cwd=here)
            assert ran.returncode == 0, f"{words}: {ran.stderr}"

        new = written(work, here)
        given = {part for word in words for part in Path(word).parts}
        text = help_of(*words[: 2 if words[0] == "certs" and words[1] != "test" else 1]).replace("MEMBER", "party-0")
        assert unnamed(text, [path for path in new if path.name not in given]) == [], line
        assert new or words[0] in ("check", "explain", "audit", "runs", "report"), f"{line} wrote nothing"


def test_a_run_writes_what_its_help_names(whole_run: Path) -> None:
    assert unnamed(help_of("run"), whole_run.iterdir()) == []


def test_a_file_without_a_name_is_noticed(tmp_path: Path) -> None:
    text = "writes report.html, party-0/ and policy_card.*; `issued/MEMBER.pem`."
    assert unnamed(text, ["a/report.html", "party-17", "policy_card.md", "x/issued"]) == []
    assert unnamed(text, ["report.json", "card.md", "party", "loose.lock"]) == ["card.md", "party", "report.json"]


def test_every_command_is_looked_at() -> None:
    tried = {line.split()[0] for line in LOCAL}
    assert tried | ELSEWHERE.keys() | {"options", "align"} >= COMMANDS.keys()
