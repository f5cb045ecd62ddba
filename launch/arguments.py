"""The parser of arguments that all programs share."""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

from secure_sccvfl.config.fields import parsed_setting
from secure_sccvfl.config.sections import BY_WIRE, OPTIONS
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.runs.console import EXIT_CODES, OK, WRONG_USE, guarded, say
from secure_sccvfl.runs.status import LOOPBACK, Watching


def did_you_mean(word: str, possible: Iterable[str]) -> str:
    """The end of a message about a word that may be misspelt; empty if none is close."""
    close = difflib.get_close_matches(word, list(possible), 1)
    return f"; did you mean {close[0]}?" if close else ""


class Parser(argparse.ArgumentParser):
    """Help from the module's own text, `--json` and `--debug` everywhere, and one-line errors."""

    def __init__(self, about: str | None, *, json: bool = True) -> None:
        super().__init__(
            description=about,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if json:
            self.add_argument("--json", action="store_true", help="print the result as JSON")
        self.add_argument("--debug", action="store_true", help="tracebacks and debug messages")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Name a misspelt option as such, before its value is read as something else."""
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                self.error(f"no option {name}{did_you_mean(name, self._option_string_actions)}")
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            message += did_you_mean(wrong[1], re.findall(r"[\w.-]+", wrong[2]))
        self.exit(WRONG_USE, f"{self.prog}: {message}; --help shows examples\n")


Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*names: str, **settings: Any) -> Argument:
    """An argument of a program, as `argparse` takes it."""
    return names, settings


class Main(Protocol):
    def __call__(self, given: Sequence[str] | None = None) -> int: ...


def program(
    name: str, *arguments: Argument, json: bool = True
) -> Callable[[Callable[[argparse.Namespace], int]], Main]:
    """Decorates the work of a program, which then takes a command line. Its docstring, or its module's, is the help.

    name: of the program in errors; its second word is a command of the program.
    """

    def decorated(work: Callable[[argparse.Namespace], int]) -> Main:
        def main(given: Sequence[str] | None = None) -> int:
            parser = Parser(inspect.getdoc(work) or sys.modules[work.__module__].__doc__, json=json)
            parser.prog = " ".join([parser.prog, *name.split()[1:]])
            for names, settings in arguments:
                parser.add_argument(*names, **settings)
            options = parser.parse_args(given)
            return guarded(name, lambda: work(options), debug=options.debug)

        return main

    return decorated


def answer(options: argparse.Namespace, record: Any, *lines: str) -> int:
    """Print a result: the record with --json, else the lines."""
    if options.json:
        print(json.dumps(record))
    else:
        for line in lines:
            say(line)
    return OK


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option of the configuration: `--set section.key=value`, and a flag each, of which few are listed."""
    for option in OPTIONS:
        if option.flag:
            option.add_to(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any option of `sccvfl options`; may be repeated",
    )


def given_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by their flat names."""
    flags = {o.wire: getattr(namespace, o.wire) for o in OPTIONS if o.flag}
    given = {name: value for name, value in flags.items() if value is not None}
    for text in namespace.set:
        name, value = parsed_setting(text, OPTIONS)
        if name in given:
            raise ConfigError(f"--set {text}: the option was given before")
        given[name] = value
    return {name: BY_WIRE[name].check(value) for name, value in given.items()}


def add_status(parser: Parser) -> None:
    """The options of a process that can be watched."""
    parser.add_argument(
        "--status", type=int, metavar="PORT", help="show what goes on: a page, /status.json and /metrics at this port"
    )
    parser.add_argument(
        "--status-host",
        default=LOOPBACK,
        metavar="ADDRESS",
        help=f"where --status answers (default {LOOPBACK}: this host alone); there is no password",
    )


def watching(parser: Parser, options: argparse.Namespace) -> Watching:
    """How the process is watched, from those options."""
    try:
        return Watching(options.status, options.status_host)
    except ConfigError as error:
        parser.error(str(error))
