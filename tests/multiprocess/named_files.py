"""Which files of a folder the help of a program names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.multiprocess.programs import run_here


def help_of(*words: str) -> str:
    """What `sccvfl WORDS --help` prints."""
    return run_here("cli", *words, "--help", cwd=Path.cwd()).stdout


def unnamed(text: str, paths: Iterable[Path | str]) -> list[str]:
    """The names that no word of a text stands for: as they are, by * or by words in capitals, with any number."""
    words = {word.rstrip(".") for word in re.findall(r"[\w.*-]+", text)}
    patterns = {re.sub(r"\\\*|[A-Z]{2,}", ".+", re.sub(r"\d+", r"\\d+", re.escape(word))) for word in words}
    every = re.compile("|".join(pattern for pattern in patterns if re.sub(r"\.\+", "", pattern)))
    names = {Path(path).name for path in paths if Path(path).suffix != ".lock"}
    return sorted(name for name in names if not every.fullmatch(name))
