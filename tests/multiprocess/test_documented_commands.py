"""Every command of README.md, SECURITY.md, docs/ and `--help` runs as it is written.

The files that a command names are made first, under the names that it uses: a finished run, records, a session file,
certificates, a description of data. Trainings get few steps. What a test cannot do in seconds, or at all, is in
`PARSED` and `NOT_RUN` with the reason; there, the program's own parser must accept every argument. Blocks run every
day; single commands in running text are parsed every day and run by `make test-slow`.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.data.drafts import draft_of
from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.launch import cli, policy
from secure_sccvfl.policy.card import read_card
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.reports.run_log import HEAD, LOG, read_log
from secure_sccvfl.runs.console import CHECK_FAILED, OK
from tests.multiprocess.documented import (
    PAGES,
    Block,
    Statement,
    Unclear,
    blocks,
    is_shell,
    is_walked,
    options_of,
    program_of,
    programs,
    single_commands,
    statements,
)
from tests.multiprocess.named_files import help_of, unnamed
from tests.multiprocess.programs import ROOT, SHORT, Program, Script, run_here, run_mpc
from tests.support.sessions import CERTIFICATES, CONNECT, LONG, credentials, in_threads, local_config
from tests.unit.runs.status.test_page import free_port

PARSED = {
    "bench": "measures for minutes, and writes over results/",
    "reproduce": "trains for many seeds",
    "security_eval": "attacks for a minute or more: run by test_long_commands",
}
"""Programs whose arguments are parsed only."""
PARSED_ALONE = {
    "certs": "needs what other hosts made: test_consortium.py runs it, in order",
    "plan": "needs a session file: the same",
    "approve": "needs pinned certificates: the same",
    "flare": "needs kits of FLARE and a session file: test_flare.py",
    "raise_cap": "needs a ledger that was spent under, and every party's key: test_cached_releases.py",
}
"""Programs that need several hosts, so that elsewhere their commands are parsed only."""
NOT_RUN = {
    "git": "needs a network",
    "curl": "needs an open session; test_serve asks the endpoint",
    "cd": "goes to where the test is already",
    ".": "changes the shell of the reader",
    "source": "changes the shell of the reader",
    "pip": "changes the environment",
    "uv": "changes the environment",
    "nvflare": "needs an extra: test_flare.py",
    "flwr": "needs Flower, which is in no extra",
    "flower-supernode": "the same",
    "podman": "needs a container engine: tests/architecture/test_deploy.py parses what it starts",
}
"""Commands that are not ours, and whose arguments nothing here can check."""
RUN_BY_SHELL = ("cat", "cp", "echo", "ls", "mkdir")
MODULES = {
    "pytest": "the suite does not run itself",
    "ruff": "`make lint` runs it",
    "mypy": "`make lint` runs it",
    "tests.mutants.run": "takes hours",
}
"""What may follow `python -m`; it must exist, as must the files that it is given."""
FEW = {"refreshes": 0, "warmup": 20, "steps": 30, "lambdas": [8.0, 16.0]}
"""SHORT for a session file."""
FEW_SPLIT = ("--warmup", "2", "--steps", "4")
"""Its steps go through the encoders of all parties."""
ATTACK = r"sccvfl attack |python3? launch/security_eval\.py "
VERDICTS = {"security_eval": (OK, CHECK_FAILED)}
"""Exit codes of a program that ran to its end. Attacks on a right run call a leak in up to 5 % of evaluations, so
that verdict is no fault of the command; tests/statistical/ and tests/adversarial/ hold the promises."""
SHIPPED = [path.name.removesuffix(".policy.toml") for path in (ROOT / "secure_sccvfl/data").rglob("*.policy.toml")]
"""Names that stand for a shipped card."""
NODES = ("run_party", "run_dealer")

REVIEWED = """
dataset = "loans"
version = "2"
date = "2026-01-31"
owners = [{ name = "lending board", kind = "board" }]
[decisions.job]
role = "M"
reason = "qualification is a permitted ground"
evidence = { kind = "statute", text = "the article that permits it" }
"""
"""A card for the description that docs/own-data.md has."""

SHELL_BLOCKS = [block for page in PAGES for block in blocks(page) if is_shell(block) and not is_walked(block)]
PYTHON_BLOCKS = [block for page in PAGES for block in blocks(page) if block.language in ("python", "py")]
TOML_BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "toml"]
SINGLE = single_commands()


def source_of(block: Block) -> str:
    return block.source


def meaning(name: str, options: argparse.Namespace) -> str:
    """The same for commands that do the same: `sccvfl privacy RUN` and `python launch/privacy_report.py runs/1`."""
    given = {k: str(v) for k, v in vars(options).items() if k not in ("out", "json", "debug")}
    for key in ("run", "model", "resume", "card", "config", "certs", "seal", "rank"):
        if given.get(key, "None") not in ("None", *SHIPPED):
            given[key] = Path(given[key]).suffix or "given"
    return f"{name} {sorted(given.items())}"


class Desk:
    """A folder in which documented commands run, with what they name."""

    def __init__(self, folder: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, done: set[str]) -> None:
        self.folder, self.finished, self._patch, self._done = folder, finished, monkeypatch, done
        (folder / "launch").symlink_to(ROOT / "launch")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def follow(self, script: Sequence[Statement], long: bool = False, parsed: bool = False) -> None:
        """Run these in order; parties and the dealer of a session run side by side. `parsed`: do not run ours."""
        session: list[tuple[str, list[str], argparse.Namespace]] = []
        for statement in script:
            if not self._is_of_program(statement):
                continue
            words = list(statement.words)
            name, options = options_of(words, self._patch)
            if parsed or (name in PARSED and not (long and name == "security_eval")):
                continue
            if name in PARSED_ALONE:
                continue
            if name in NODES and (options.job or options.resume):
                continue  # they need the folders of an earlier run at every host: tests/multiprocess/test_hosts.py
            self._furnish(options)
            if name in ("init", "check"):
                self._furnish_own(options)
            if name in NODES:
                session.append((name, words, options))
            elif self._is_new(name, options):
                self._run(self._adapted(words, name, options), statement.rest, VERDICTS.get(name, (OK,)))
        new = [self._is_new(name, options) for name, _, options in session]
        if any(new) or (session and any(statement.document for statement in script)):
            self._run_session([(words, options) for _, words, options in session])

    def _is_of_program(self, statement: Statement) -> bool:
        """Is one of our programs left to run? All other known commands are dealt with here; unknown ones raise."""
        words = statement.words
        if statement.elided:
            whole = [word for word in words if not word.endswith(("...", "…"))]
            assert program_of(whole) is not None, f"no such program: {statement.text}"
            assert whole[0] != "sccvfl" or len(whole) == 1 or whole[1] in cli.COMMANDS, statement.text
            return False
        if program_of(words) is not None:
            if "--help" in words:
                self._run(words)
            return "--help" not in words
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert targets, f"{statement.text}: names no target"
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        elif words[0] in RUN_BY_SHELL:
            self._shell(f"{shlex.join(words)} {statement.rest}\n{statement.document}")
        elif words[:2] == ("python", "-m") and len(words) > 2 and words[2] in MODULES:
            assert find_spec(words[2]) is not None
            for word in words[3:]:
                assert "/" not in word or (ROOT / word.partition("::")[0]).exists(), f"{statement.text}: no {word}"
        elif words[0] not in NOT_RUN:
            raise Unclear(f"what is to be done with {statement.text!r}?")
        return False

    def _is_new(self, name: str, options: argparse.Namespace) -> bool:
        """Did nothing with the same meaning run before?"""
        said = meaning(name, options)
        new = said not in self._done
        self._done.add(said)
        return new

    def _furnish(self, options: argparse.Namespace) -> None:
        """Make every file and folder that a command expects to be there."""
        given = vars(options)
        for key in ("run", "model", "resume", "card", "newer"):
            value = given.get(key)
            if value is None or isinstance(value, bool) or given.get("fresh") or str(value) in (*SHIPPED, "shipped"):
                continue
            path = self.folder / value
            if not path.exists():
                self._finished_run(path)
            if key == "resume":
                for name in (LOG, HEAD):
                    (path / name).unlink()
            if given.get("appeal"):
                objection = ["--feature", "housing", "--who", "an applicant", "--text", "no choice"]
                assert policy.main(["appeal", str(path), *objection]) == 0
        if (records := given.get("records")) is not None:
            shutil.copy(self.finished / "examples" / "records.csv", self.folder / records)
        dataset = given.get("dataset")
        if (session := given.get("session")) is not None and (self.folder / session).exists():
            dataset = load_session(self.folder / session).options.get("dataset")
        if str(dataset).endswith(".toml") and not (self.folder / str(dataset)).exists():
            write_described(self.folder / str(dataset))
        if (
            given.get("run") is not None and given.get("config") is not None
        ):  # what a reader of a run compares it with
            shutil.copy(self.folder / given["run"] / "session.toml", self.folder / given["config"])
            shutil.copytree(CERTIFICATES, self.folder / given["certs"])

    def _furnish_own(self, options: argparse.Namespace) -> None:
        """The tables, drafts or description that `init` and `check` expect; those that are there stay."""
        source = self.folder / "made"
        source.mkdir(exist_ok=True)
        write_described(source / "loans.toml")
        description, given = tomllib.loads((source / "loans.toml").read_text()), vars(options)
        parties = {name: one["file"] for name, one in description["parties"].items()}
        wanted = [*parties.values()] if given.get("description") else []
        for file in [*wanted, *([given["file"]] if given.get("file") else [])]:
            source_file = file if file in parties.values() else parties.get(given["party"] or "", Path(file).name)
            table = pd.read_csv(source / source_file, dtype=str)
            if not (self.folder / file).exists():
                table.rename(columns={"id": given.get("id") or "id"}).to_csv(self.folder / file, index=False)
        if given.get("description") and not (self.folder / given["description"]).exists():
            shutil.copy(source / "loans.toml", self.folder / given["description"])
        for name, file in parties.items() if given.get("merge") else ():
            label = description["label"]["column"] if description["label"]["party"] == name else None
            protected = [entry["column"] for entry in description["protected"] if entry["party"] == name]
            draft = draft_of(source / file, name, label=label, protected=protected)
            (self.folder / f"draft-{name}.toml").write_text(draft.text())

    def _finished_run(self, path: Path) -> None:
        """A finished run, its policy card or one of its ledgers, as the name says."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            shutil.copy(self.finished / "policy_card.json", path)
        elif path.suffix == ".toml":
            path.write_text(REVIEWED)
        elif path.suffix == ".jsonl":
            ledgers = self.finished / "party-0"
            for part in ledgers.glob("ledger.jsonl*"):
                shutil.copy(part, path.with_name(part.name.replace("ledger.jsonl", path.name)))
            shutil.copytree(ledgers / "sets", path.parent / "sets")
        else:
            shutil.copytree(self.finished, path)

    def _adapted(self, words: list[str], name: str, options: argparse.Namespace) -> list[str]:
        """The command with a true seal, and with few steps if it trains."""
        if getattr(options, "seal", None):
            seal = read_log(self.folder / options.run)[-1]["hash"]
            words = [seal if word == options.seal else word for word in words]
        if name == "run_mpc" and options.job == "train" and options.resume is None:
            words = [*words, *SHORT]
        if name == "run_mpc" and options.job == "train":
            words = [*words, "--no-harness", *(FEW_SPLIT if options.mode == "split" else ())]
        return words

    def _run(self, words: Sequence[str], rest: str = "", codes: Sequence[int] = (OK,)) -> None:
        """One of our programs: called here, or by the shell if its output goes elsewhere."""
        program = program_of(words)
        if rest or program is None:
            self._shell(f"{shlex.join(words)} {rest}", codes)
            return
        ran = run_here(program[0], *program[1], cwd=self.folder)
        self._must_end(shlex.join(words), codes, ran.returncode, ran.stdout, ran.stderr)

    def _shell(self, text: str, codes: Sequence[int] = (OK,)) -> None:
        ran = subprocess.run(
            ["bash", "-ec", text], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LONG
        )
        self._must_end(text, codes, ran.returncode, ran.stdout, ran.stderr)

    @staticmethod
    def _must_end(text: str, codes: Sequence[int], code: int, said: str, errors: str) -> None:
        assert code in codes, f"{text}\nended with {code}\n{said[-1500:]}\n{errors[-3000:]}"

    def _run_session(self, given: list[tuple[list[str], argparse.Namespace]]) -> None:
        """Each process in a folder of its own, as on its own host; those that were not named are added."""
        file, certs = given[0][1].config, given[0][1].certs
        config, listeners = self._session_file(self.folder / file)
        if not (self.folder / certs).exists():
            shutil.copytree(CERTIFICATES, self.folder / certs)
        nodes = {getattr(options, "rank", config.dealer): words for words, options in given}
        common = ["--config", str(file), "--certs", str(certs)]
        for rank in range(config.dealer):
            nodes.setdefault(rank, ["sccvfl", "party", "--rank", str(rank), *common, "--out", "out"])
        nodes.setdefault(config.dealer, ["sccvfl", "dealer", *common])
        running = []
        for node, words in nodes.items():
            host = self.folder / "hosts" / str(node)
            shutil.copytree(self.folder, host, symlinks=True, ignore=shutil.ignore_patterns("hosts"))
            program, arguments = program_of(words) or ("", [])
            if "--status" in arguments:  # the documented port may be taken here
                arguments[arguments.index("--status") + 1] = str(free_port())
            script = Script(f"node {node}", ROOT / "launch" / f"{program}.py", tuple(arguments))
            listener = listeners[node] if node < config.dealer else None
            running.append((words, Program(script, host / "log", host, listener)))
        for listener in listeners:
            listener.close()
        try:
            endings = [(words, program.wait(LONG), program.said()) for words, program in running]
        finally:
            for _, program in running:
                program.end()
        for words, code, said in endings:
            self._must_end(shlex.join(words), (OK,), code, "", said)

    def _session_file(self, path: Path) -> tuple[SessionConfig, list[Any]]:
        """The session file as documented but on free local ports and with few steps; a self-test if there is none."""
        if not path.exists():
            path.write_text('parties = ["a.example:1", "b.example:1", "c.example:1"]\n[options]\nsize = 20\n')
        documented = load_session(path)
        local, listeners = local_config(len(documented.parties))
        options = dict(documented.options)
        if "train" in (documented.job, *documented.jobs):
            options |= FEW
        if str(options.get("dataset")).endswith(".toml"):
            write_described(path.parent / options["dataset"])
        config = replace(documented, parties=local.parties, connect=CONNECT, options=options)
        path.write_text(config.to_toml())
        return config, listeners


def described() -> str | None:
    """The first description of somebody's own data in the documentation."""
    return next((block.text for block in TOML_BLOCKS if "features" in block.text and "[parties." in block.text), None)


def write_described(path: Path) -> None:
    """The documented description of data under this name, with files of random records that fit it."""
    text = described()
    assert text is not None, "commands name a description of data, and no toml block of the documentation has one"
    path.write_text(text)
    description, draw = tomllib.loads(text), random.Random(0)
    columns: dict[str, list[tuple[str, Callable[[], object]]]] = {name: [] for name in description["parties"]}

    def one_of(values: list[str]) -> Callable[[], object]:
        return lambda: draw.choice(values)

    def between(low: float, high: float) -> Callable[[], object]:
        return lambda: round(draw.uniform(low, high), 2)

    label = description["label"]
    named = one_of(label["classes"]) if "classes" in label else between(label["low"], label["high"])
    columns[label["party"]].append((label["column"], named))
    for attribute in description["protected"]:
        columns[attribute["party"]].append((attribute["column"], one_of(attribute["groups"])))
    for name, party in description["parties"].items():
        for feature in party["features"]:
            numeric = feature["kind"] == "number"
            values = between(feature["low"], feature["high"]) if numeric else one_of(feature["categories"])
            columns[name].append((feature["name"], values))
    for name, party in description["parties"].items():
        with (path.parent / party["file"]).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([description["id"], *(column for column, _ in columns[name])])
            writer.writerows([f"r{row}", *(value() for _, value in columns[name])] for row in range(400))


@pytest.fixture(scope="module")
def done() -> set[str]:
    """What ran already, by its meaning: at first the command that made the finished run."""
    with pytest.MonkeyPatch.context() as patch:
        return {meaning(*options_of(["sccvfl", "run", "--parties", "3"], patch))}


@pytest.fixture
def desk(tmp_path: Path, whole_run: Path, monkeypatch: pytest.MonkeyPatch, done: set[str]) -> Desk:
    return Desk(tmp_path, whole_run, monkeypatch, done)


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=source_of)
def test_blocks_of_commands(desk: Desk, block: Block) -> None:
    desk.follow(statements(block))


def test_single_commands_are_accepted(
    tmp_path: Path, whole_run: Path, monkeypatch: pytest.MonkeyPatch, done: set[str]
) -> None:
    """Examples of `--help`, indented commands, and those in running text: the program's own parser takes them."""
    refused = {}
    for number, (command, statement) in enumerate(SINGLE.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            Desk(folder, whole_run, monkeypatch, done).follow([statement], parsed=True)
        except (AssertionError, Unclear, subprocess.CalledProcessError) as error:
            refused[command] = str(error)
    assert refused == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", SINGLE, ids=str)
def test_single_commands(desk: Desk, command: str) -> None:
    """The same commands, run."""
    desk.follow([SINGLE[command]])


@pytest.fixture(scope="module")
def watched_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with transcripts, which the attacks need."""
    folder = tmp_path_factory.mktemp("watched")
    run_mpc("--out", "run", "--transcript", "--no-harness", *SHORT, cwd=folder)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("command", [text for text in SINGLE if re.match(ATTACK, text)], ids=str)
def test_long_commands(
    tmp_path: Path, watched_run: Path, monkeypatch: pytest.MonkeyPatch, done: set[str], command: str
) -> None:
    Desk(tmp_path, watched_run, monkeypatch, done).follow([SINGLE[command]], long=True)
    assert unnamed(help_of("attack") + help_of("run"), tmp_path.glob("runs/*/*")) == []


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=source_of)
def test_python_blocks(desk: Desk, monkeypatch: pytest.MonkeyPatch, block: Block) -> None:
    """A block that opens a session runs at three parties, with a dealer; every other one runs once."""
    code = compile(block.text, block.source, "exec")
    for name in ("train", "run_local"):
        few = {**FEW, **({"harness": False} if name == "run_local" else {})}
        monkeypatch.setattr(scc, name, functools.partial(getattr(scc, name), **few), raising=False)
    monkeypatch.chdir(desk.folder)
    for named in re.findall(r"[\"'](runs/[^\"']+)[\"']", block.text):
        if not (desk.folder / named).exists():
            shutil.copytree(desk.finished, desk.folder / named)
    if described() is not None:
        for named in re.findall(r"[\"']([\w-]+\.toml)[\"']", block.text):
            write_described(desk.folder / named)
    if "open_session(" not in block.text:
        exec(code, {})
        return
    from secure_sccvfl.protocols.session.node import serve_as_dealer

    config, listeners = local_config(3)
    for listener in listeners:
        listener.close()

    def party(rank: int) -> None:
        names = {"config": config, "rank": rank, "credentials": credentials(rank, 3)}
        values = np.linspace(-2, 2, 1000) if rank == 0 else None
        exec(code, {**names, "values": values})

    parties = [lambda rank=rank: party(rank) for rank in range(3)]
    in_threads([*parties, lambda: serve_as_dealer(config, credentials(3, 3))])


@pytest.mark.parametrize("block", TOML_BLOCKS, ids=source_of)
def test_toml_blocks(tmp_path: Path, block: Block) -> None:
    """A policy card, a description of data or a session file; nothing else is documented in TOML."""
    content = tomllib.loads(block.text)
    (tmp_path / "file.toml").write_text(block.text)
    if "decisions" in content:
        assert read_card(tmp_path / "file.toml").decisions
    elif isinstance(content.get("parties"), list):
        load_session(tmp_path / "file.toml")
    else:
        assert content["parties"] and own_schema(tmp_path / "file.toml").parties


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("dance --now", Unclear),
        ("python launch/gone.py", Unclear),
        ("python launch/privacy_report.py RUN --ouut 1", AssertionError),
        ("python launch/reproduce.py main --seeds ten --out out", AssertionError),
        ("python launch/policy.py diff RUN", AssertionError),
        ("sccvfl dance", AssertionError),
        ("sccvfl dance ...", AssertionError),
        ("make dance", subprocess.CalledProcessError),
        ("python -m pytest tests/gone/", AssertionError),
    ],
)
def test_a_wrong_command_is_found(desk: Desk, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        desk.follow(statements(Block("here", "sh", text + "\n")))


def test_a_block_that_cannot_be_read_is_found() -> None:
    assert not is_shell(Block("here", "", "all well\n"))
    with pytest.raises(Unclear, match="give it the language sh"):
        is_shell(Block("here", "", "pyhton launch/privacy_report.py RUN\n"))
    with pytest.raises(Unclear, match="no end"):
        statements(Block("here", "sh", "cat > file <<END\ntext\n"))


def test_every_program_has_an_example() -> None:
    """And what is parsed only is a program."""
    named = {program[0] for text in SINGLE if (program := program_of(shlex.split(text))) is not None}
    named |= {
        module for command, (module, *_) in cli.COMMANDS.items() if any(f"sccvfl {command}" in t for t in SINGLE)
    }
    assert {path.stem for path in programs()} <= named
    assert set(PARSED) <= named
