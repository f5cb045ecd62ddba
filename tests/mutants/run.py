"""Break the code on purpose, one promise at a time, and see whether its tests notice: `make mutants`.

    python -m tests.mutants.run [--only NAME ...] [--jobs N]

Works on temporary copies of the tree, one for each job, never on the files here. First the tests that the list names
run once on the code as it is: one that fails, or that does not exist, ends the program. Then each mutation is
made, its tests run until the first failure, and it is taken back. Killed: a test failed, or the tests hung (they may
take four times as long as they did on the code as it is, and two minutes at least). Survived: they passed. Anything
else, such as code that cannot be imported, is an error and no kill: it says nothing about the tests.

Ends with 0 if all were killed, 1 if one survived, 2 if the list, the tests or a run was at fault.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutation import ROOT, Mutation, MutationError, Selection, read_list

LEAST_SECONDS = 120.0
"""How long tests may take at least before they count as hung: a busy machine is slow at times."""
PATIENCE = 4.0
"""How many times as long as on the unchanged code."""
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "*.egg-info")
OUTPUTS = {"runs", "build", "dist"}
"""Folders of results, at the top of the tree only: `secure_sccvfl/runs` is source."""
PACKAGES = ("secure_sccvfl", *(f"secure_sccvfl.{name}" for name in ("protocols", "accounting", "launch")), "tests")


@dataclass(frozen=True)
class Ran:
    """How one run of pytest ended; no code if it hung."""

    code: int | None
    seconds: float
    output: str

    @property
    def first_failure(self) -> str:
        """The test that failed, or could not be set up, as pytest's summary names it."""
        lines = [line for line in self.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return lines[0].partition(" ")[2].partition(" - ")[0] if lines else "?"


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    word: str
    seconds: float
    detail: str


def left_behind(folder: str, names: list[str]) -> set[str]:
    """What a copy of the tree does without, in one folder."""
    return NOT_SOURCE(folder, names) | (OUTPUTS & {*names} if Path(folder) == ROOT else set())


class Workshop:
    """One copy of the tree, in which code is changed and tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=left_behind)
        # No byte code: Python checks it by whole seconds and length of the source, and a mutation may change neither.
        self._environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        self._check_imports(folder)
        self._process: subprocess.Popen[str] | None = None

    def _check_imports(self, elsewhere: Path) -> None:
        """The copy is what a process imports, wherever it starts, though the package is installed from here."""
        program = (
            f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__file__' for p in PACKAGES)},), sep='\\n')"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=elsewhere, env=self._environment, capture_output=True, text=True
        )
        paths = ran.stdout.split()
        if len(paths) != len(PACKAGES) or any(not Path(p).is_relative_to(self.root) for p in paths):
            raise MutationError(f"the copy is not what is imported: {paths or ran.stderr}")

    def run(self, tests: Selection, limit: float | None = None) -> Ran:
        """Run these tests until the first failure, for so many seconds at most."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            *tests.arguments(),
        ]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as self._process:
            try:
                output, _ = self._process.communicate(timeout=limit)
                code: int | None = self._process.returncode
            except subprocess.TimeoutExpired:
                output, code = "", None
            finally:
                self.stop()
        return Ran(code, time.monotonic() - began, output)

    def stop(self) -> None:
        """End the tests that run here, and what they have started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    @contextmanager
    def changed(self, mutation: Mutation) -> Iterator[None]:
        """The tree with this mutation, and without it afterwards."""
        path = self.root / mutation.file
        before = path.read_bytes()
        path.write_text(mutation.applied(self.root), encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(before)

    def evaluate(self, mutation: Mutation, usual: float) -> Verdict:
        limit = max(LEAST_SECONDS, PATIENCE * usual)
        with self.changed(mutation):
            ran = self.run(mutation.tests, limit)
        if ran.code is None:
            return Verdict(mutation, "killed", ran.seconds, f"hung for {limit:.0f} s, {usual:.0f} s are usual")
        if ran.code == 1:
            return Verdict(mutation, "killed", ran.seconds, ran.first_failure)
        if ran.code == 0:
            return Verdict(mutation, "SURVIVED", ran.seconds, mutation.why)
        return Verdict(mutation, "ERROR", ran.seconds, f"pytest ended with {ran.code}: {ran.output[-500:]}")


def usual_times(workshop: Workshop, wanted: Iterable[Selection]) -> dict[Selection, float]:
    """Seconds that tests take at most on the code as it is, or MutationError if they do not pass on it.

    Tests of one file run together, since most of the time goes into what they import.
    """
    groups: dict[tuple[str, ...], list[Selection]] = {}
    for selection in dict.fromkeys(wanted):
        files = sorted({name.partition("::")[0] for name in selection.files})
        groups.setdefault((*files, selection.chosen), []).append(selection)
    times: dict[Selection, float] = {}
    for number, same_files in enumerate(groups.values(), start=1):
        names = tuple(dict.fromkeys(name for selection in same_files for name in selection.files))
        together = Selection(names, same_files[0].chosen)
        ran = workshop.run(together)
        print(f"as it is {number}/{len(groups)}  {ran.seconds:5.1f} s  {' '.join(together.arguments())}", flush=True)
        if ran.code != 0:
            raise MutationError(f"tests fail, or are not there, without any mutation:\n{ran.output[-2000:]}")
        times.update(dict.fromkeys(same_files, ran.seconds))
    return times


def evaluate_all(mutations: Sequence[Mutation], jobs: int) -> list[Verdict]:
    """Every mutation in one of `jobs` copies of the tree, with a line for each as it ends."""
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="sccvfl-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        folders = [Path(folder) / str(number) for number in range(jobs)]
        for path in folders:
            path.mkdir()
        workshops = [Workshop(path) for path in folders]
        times = usual_times(workshops[0], [mutation.tests for mutation in mutations])
        free: queue.Queue[Workshop] = queue.Queue()
        for workshop in workshops:
            free.put(workshop)

        def work(mutation: Mutation) -> Verdict:
            workshop = free.get()
            try:
                return workshop.evaluate(mutation, times[mutation.tests])
            finally:
                free.put(workshop)

        try:
            for number, verdict in enumerate(pool.map(work, mutations), start=1):
                line = (
                    f"{number}/{len(mutations)}  {verdict.word:8}  {verdict.seconds:5.1f} s  {verdict.mutation.name}"
                )
                print(f"{line}  ({verdict.detail})", flush=True)
                verdicts.append(verdict)
        finally:  # when the user ends this program, what still runs goes with it
            pool.shutdown(wait=False, cancel_futures=True)
            for workshop in workshops:
                workshop.stop()
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Break the code on purpose and see whether its tests notice.")
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutation alone; may be given again")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default 1)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that it leaves nothing behind
    began = time.monotonic()
    try:
        listed = read_list()
        for mutation in listed:
            mutation.applied(ROOT)
        by_name = {mutation.name: mutation for mutation in listed}
        if unknown := set(options.only or ()) - by_name.keys():
            raise MutationError(f"no such mutation: {', '.join(sorted(unknown))}")
        if options.jobs < 1:
            raise MutationError(f"at least one job is needed, not {options.jobs}")
        verdicts = evaluate_all([by_name[name] for name in options.only or by_name], options.jobs)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2
    words = [verdict.word for verdict in verdicts]
    minutes = (time.monotonic() - began) / 60
    print(f"{words.count('killed')} of {len(words)} killed, {words.count('SURVIVED')} survived, ", end="")
    print(f"{words.count('ERROR')} could not be run; {minutes:.1f} minutes")
    for verdict in verdicts:
        if verdict.word != "killed":
            print(f"  {verdict.word}: {verdict.mutation.name}: {verdict.mutation.why}")
    return 2 if "ERROR" in words else int("SURVIVED" in words)


if __name__ == "__main__":
    sys.exit(main())
