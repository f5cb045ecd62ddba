"""Every file that a command writes into a user's folder is named in its --help."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import secure_sccvfl as scc
from secure_sccvfl.launch.cli import COMMANDS
from tests.multiprocess.named_files import commands, help_of, unnamed
from tests.multiprocess.programs import ROOT, run_here

SIGNED = " ".join(f"certs/request-{member}.pem" for member in ("party-0", "party-1", "party-2", "dealer"))
LOCAL = (
    "options",
    "init bank.csv --party bank --label late",
    "init bureau.csv --party bureau --duplicates first",
    "init employer.csv --party employer --protected from_25",
    "init --merge draft-bank.toml draft-bureau.toml draft-employer.toml --name loans --session session.toml",
    "check loans.toml --party bank",
    "align loans.toml --party bank --dry-run",
    "certs test",
    *(f"certs request certs --member party-{rank} --name bank" for rank in range(3)),
    "certs request certs --member dealer --name notary",
    "certs authority authority",
    f"certs sign {SIGNED} --authority authority",
    *(f"certs install authority/issued/party-{rank}.pem authority/ca.pem certs" for rank in range(3)),
    "certs show certs",
    "certs request certs --member party-0 --name bank --renew",
    "certs pin session.toml authority",
    "kit session.toml",
    "plan session.toml --out plan.json",
    "approve session.toml --certs certs --rank 0 --yes",
    "preflight session.toml --certs certs --rank 0 --wait 0.1",
    "certs revoke authority/issued/party-0.pem --authority authority",
    "flare job session.toml --out job",
    "flare site startup-kit --home . --member party-0",
    "report run",
    "explain run --record g0374",
    "audit verify run",
    "audit log run",
    "privacy run --out budget",
    "policy show run",
    "policy check run",
    "policy verify run",
    "policy status run",
    "policy diff run german",
    "policy key --key board.pem",
    "policy approve run --as bank",
    "policy appeal run --feature housing --who w --text t --wants N",
    "policy review run --appeal 1 --who w --text t",
    "runs run",
    "raise-cap draft cap.toml --ledger run/party-0 --epsilon 12 --reason why",
    "raise-cap show cap.toml",
    "raise-cap sign cap.toml --certs test --rank 0",
    "export modelcard run",
    "export intoto run --certs test --rank 0",
    "predict --model run --records new.csv --out told",
    "discovery --dataset german --out found",
    "selftest --parties 2 --size 20 --out tested",
)
"""Commands of one host, in an order in which each finds what it needs."""
ENDS = {"preflight": 1, "policy verify": 3}
"""Exit codes other than 0: nobody else is there, and nobody has approved the card yet."""
READ_ONLY = {"options", "check", "align", "certs show", "preflight", "report", "explain", "runs", "raise-cap show"}
READ_ONLY |= {f"policy {name}" for name in ("show", "check", "verify", "status", "diff")} | {
    "audit verify",
    "audit log",
}
"""Commands that write nothing; `report` writes the page only if it changes."""
ELSEWHERE = {
    "run": "multiprocess/test_named_files.py",
    "attack": "multiprocess/test_documented_commands.py",
    **dict.fromkeys(("party", "party predict", "dealer", "dealer predict"), "multiprocess/test_hosts.py"),
    **dict.fromkeys(("party serve", "dealer serve"), "multiprocess/test_serve.py"),
    **dict.fromkeys(("policy send", "policy receive"), "unit/runs/member/test_card_updates.py"),
    "export mlflow": "unit/reports/test_exports.py",
    "bench": "unit/research/test_benchmarks.py",
    "reproduce": "unit/research/test_experiments.py",
}
"""Commands that no line above runs, and the tests that look at their files."""


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
    shutil.copy(run / "examples" / "records.csv", tmp_path / "new.csv")
    (tmp_path / "startup-kit" / "local").mkdir(parents=True)
    for file, content in (("resources", "{}"), ("authorization", '{"permissions": {}}')):
        (tmp_path / "startup-kit" / "local" / f"{file}.json.default").write_text(content)
    return tmp_path


def test_commands_of_one_host_write_what_their_help_names(here: Path) -> None:
    for line in LOCAL:
        words = line.split()
        command = next(name for name in (" ".join(words[:2]), words[0]) if name in commands())

        def work(words: list[str] = words, expected: int = ENDS.get(command, 0)) -> None:
            ran = run_here("cli", *words, cwd=here)
            assert ran.returncode == expected, f"{words}: {ran.stderr}"

        new = written(work, here)
        given = {part for word in words for part in Path(word).parts}
        text = help_of(*(command.split() if words[0] in ("certs", "flare") else words[:1]))
        text = text.replace("MEMBER", "party-0") + text.replace("MEMBER", "dealer")
        assert unnamed(text, [path for path in new if path.name not in given]) == [], line
        assert bool(new) == (command not in READ_ONLY), line


def test_a_run_writes_what_its_help_names(whole_run: Path) -> None:
    assert unnamed(help_of("run"), whole_run.rglob("*")) == []


def test_a_file_without_a_name_is_noticed(tmp_path: Path) -> None:
    text = "writes report.html, party-0/ and policy_card.*; `issued/MEMBER.pem`."
    assert unnamed(text, ["a/report.html", "party-17", "policy_card.md", "x/issued"]) == []
    assert unnamed(text, ["report.json", "card.md", "party", "loose.lock"]) == ["card.md", "party", "report.json"]


def test_every_command_is_looked_at() -> None:
    tried = {name for line in LOCAL for name in commands() if line.split()[: len(name.split())] == name.split()}
    assert tried | ELSEWHERE.keys() == commands()
    for command, test in ELSEWHERE.items():
        looks = rf'unnamed\(help_of\("{command.split()[0]}"'
        assert re.search(looks, (Path(__file__).parents[1] / test).read_text()), f"{test} does not look at {command}"


def test_every_program_has_a_command() -> None:
    modules = {path.stem for path in (ROOT / "launch").glob("*.py")} - {"__init__", "arguments"}
    assert modules - {"cli"} == {module.partition(":")[0] for module, *_ in COMMANDS.values()} - {"cli"}
