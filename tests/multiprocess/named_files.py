"""Which files of a folder the help of a program names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from secure_sccvfl.launch import certs
from secure_sccvfl.launch.cli import COMMANDS
from tests.multiprocess.programs import run_here


def help_of(*words: str) -> str:
    """What `sccvfl WORDS --help` prints."""
    return run_here("cli", *words, "--help", cwd=Path.cwd()).stdout


@functools.cache
def commands() -> set[str]:
    """Every command of `sccvfl`: `plan`, `policy approve`. Experiments and benchmarks are taken for arguments."""
    found = {f"certs {name}" for name in certs.COMMANDS}
    for name in COMMANDS:
        usage = help_of(name).partition("\n\n")[0]
        choices = re.search(r"(\[?)\{(.*?)\}", re.sub(r"--[\w-]+ \{.*?\}", "", usage))
        if choices is None or choices[1] or name in ("reproduce", "bench"):
            found.add(name)
        if choices is not None and name not in (
            "run",
            "predict",
            "discovery",
            "selftest",
            "options",
            "reproduce",
            "bench",
        ):
            found |= {f"{name} {word}" for word in choices[2].split(",")}
    return found


def unnamed(text: str, paths: Iterable[Path | str]) -> list[str]:
    """The names that no word of a text stands for: as they are, by * or by words in capitals, with any number.

    Locks, and files whose name is a digest, are not looked at.
    """
    words = {word.rstrip(".") for word in re.findall(r"[\w.*-]+", text)}
    words = {word for word in words if re.search("[a-z]", word)}  # OUT and FIRST_SEED would stand for anything
    patterns = {re.sub(r"\\\*|(?<!_)[A-Z]{2,}(?!_)", ".+", re.sub(r"\d+", r"\\d+", re.escape(w))) for w in words}
    every = re.compile("|".join(patterns))
    digest = re.compile("[0-9a-f]{64}")
    names = {Path(path).name for path in paths if Path(path).suffix != ".lock" and not digest.match(Path(path).name)}
    return sorted(name for name in names if not every.fullmatch(name))
