"""The commands and code of the documentation: fenced blocks, indented and inline commands, examples of `--help`."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.launch import arguments as command_line
from secure_sccvfl.launch import cli
from tests.multiprocess.programs import ROOT

FOLLOWED = ROOT / "docs" / "tutorial.md"
"""test_tutorial.py runs it from its first block to its last, in one folder."""
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "results/README.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != FOLLOWED),
]
SHELLS = ("sh", "bash", "shell", "console")
FIRST_WORDS = ("python", "python3", "sccvfl", "make", "pip", "uv", "pytest", "git", "cat", "cd", ".", "source", "$")
"""What the first line of a block without a language begins with, if it is a block of commands."""
_INLINE = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(python3?|sccvfl|make|pip|uv|pytest|\.)\s+\S")
_OURS = re.compile(r"\blaunch/\w+\.py|^\s*sccvfl\s|^\s*make\s", re.MULTILINE)
_REMARK = re.compile(r"\s{2,}(?!--|\\|[|>&]).*$")
"""What an example of a help text is for: after two spaces, and no option."""


class Unclear(ValueError):
    """A piece of documentation that is neither a known kind of command nor plainly something else."""


@dataclass(frozen=True)
class Statement:
    """One command: its words up to a pipe or redirection, what follows them, and a here-document if it has one."""

    text: str
    words: tuple[str, ...]
    rest: str = ""
    document: str = ""

    @property
    def elided(self) -> bool:
        """A command that leaves something out, such as `policy appeal RUN ...`."""
        return any(word.endswith(("...", "…")) for word in self.words)


@dataclass(frozen=True)
class Block:
    """A fenced block; its place names the file and line for messages."""

    source: str
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*(`{3,}|~{3,})\s*(\S*)", line)
        if opened is None and fence:
            opened, lines = (number, fence[1], fence[2].lower()), []
        elif opened is not None and line.strip() == opened[1]:
            yield Block(f"{page.relative_to(ROOT)}:{opened[0]}", opened[2], "\n".join(lines) + "\n")
            opened = None
        elif opened is not None:
            lines.append(line)
    if opened is not None:
        raise Unclear(f"{page}: the block of line {opened[0]} has no end")


def is_shell(block: Block) -> bool:
    """Does it hold commands? A block without a language is judged by its first word."""
    if block.language in SHELLS:
        return True
    first = next((line.split()[0] for line in block.text.splitlines() if line.split()), "")
    if not block.language and first in FIRST_WORDS:
        return True
    if block.language in ("", "text") and _OURS.search(block.text):
        raise Unclear(f"{block.source}: a block with commands does not begin with one; give it the language sh")
    return False


def is_walked(block: Block) -> bool:
    """Do its remarks name the hosts of its commands? Then test_consortium.py runs them, each at its host."""
    return is_shell(block) and re.search(r"(?m)^# at the \w+", block.text) is not None


def statements(block: Block) -> list[Statement]:
    """The commands of a block, in order; after a `$` prompt, lines without one are output."""
    lines = block.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return list(_statements(lines))


def _statements(lines: Iterable[str]) -> Iterator[Statement]:
    waiting = iter(lines)
    for line in waiting:
        while line.endswith("\\"):
            line = line[:-1] + next(waiting, "")
        document = ""
        if here := re.search(r"<<-?\s*['\"]?(\w+)", line):
            for inner in waiting:
                if inner.strip() == here[1]:
                    break
                document += inner + "\n"
            else:
                raise Unclear(f"the here-document of {line!r} has no end")
            document += here[1] + "\n"
        yield from _split(line, document)


def _split(line: str, document: str = "") -> Iterator[Statement]:
    """The commands of one line: `a && b` are two; words end at a pipe, a redirection or a comment."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    rest: list[str] = []
    for token in [*reader, ";"]:
        if token in (";", "&&"):
            if words:
                yield Statement(line.strip(), tuple(words), " ".join(rest), document)
            words, rest = [], []
        elif rest or set(token) <= set("|<>&"):
            rest.append(token if set(token) <= set("|<>&") else shlex.quote(token))
        elif words or not re.fullmatch(r"\w+=\S*", token):  # NAME=value before a command is no word of it
            words.append(token)


def single_commands() -> dict[str, Statement]:
    """Every command outside of fenced blocks, by its words: of help texts, indented, and in running text."""
    commands: dict[str, Statement] = {}
    for text in [*_help_examples(), *_in_pages()]:
        for statement in _split(text):
            commands.setdefault(shlex.join(statement.words), statement)
    return commands


def programs() -> list[Path]:
    """The files in launch/ that are programs."""
    return [
        path for path in sorted((ROOT / "launch").glob("*.py")) if re.search(r"^def main\(", path.read_text(), re.M)
    ]


def _help_examples() -> Iterator[str]:
    for path in sorted((ROOT / "launch").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in (tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef))):
            for line in (ast.get_docstring(node) or "").splitlines():
                if line.startswith("    ") or line.startswith(("python ", "sccvfl ")):
                    yield _REMARK.sub("", line.strip())


def _in_pages() -> Iterator[str]:
    for page in PAGES:
        text = re.sub(r"(?ms)^\s*(```|~~~).*?^\s*\1\s*$", "", page.read_text(encoding="utf-8"))
        lines = iter(text.splitlines())
        for line in lines:
            if line.startswith("    ") and _COMMAND.match(line.strip()):
                while line.endswith("\\"):
                    line = line[:-1] + next(lines, "")
                yield _REMARK.sub("", re.sub(r"\s+(?=--)", " ", line.strip()))
        for paragraph in re.split(r"\n\s*\n", text):
            for inline in _INLINE.findall(paragraph):
                if _COMMAND.match(inline):
                    yield " ".join(inline.split())


class _Parsed(BaseException):
    """Carries the arguments out of a program before it does anything."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options


def program_of(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The module in launch/ that a command starts, and its arguments; None for other commands."""
    if words[0] == "sccvfl":
        return "cli", list(words[1:])
    script = re.fullmatch(r"python3? launch/(\w+)\.py", " ".join(words[:2]))
    return (script[1], list(words[2:])) if script and ROOT / words[1] in programs() else None


def options_of(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, argparse.Namespace]:
    """What the program's own parser makes of a command, and the module whose parser it was."""
    program = program_of(words)
    assert program is not None, words
    name, arguments = program
    if name == "cli" and arguments and arguments[0] in cli.COMMANDS:
        module, _, function = cli.COMMANDS[arguments[0]][0].partition(":")
        name = function or module
    parse = command_line.Parser.parse_args

    def stop(self: command_line.Parser, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        raise _Parsed(parse(self, args, namespace))

    with monkeypatch.context() as patch:
        patch.setattr(command_line.Parser, "parse_args", stop)
        patch.setattr(sys, "argv", ["program"])
        try:
            code = import_module(f"secure_sccvfl.launch.{program[0]}").main(arguments)
        except _Parsed as parsed:
            return name, parsed.options
        except SystemExit as error:
            code = error.code
    raise AssertionError(f"{shlex.join(words)}: not parsed, ended with {code}")
