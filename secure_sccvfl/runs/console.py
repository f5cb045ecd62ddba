"""How a process speaks to people: one-line errors, exit codes, the log, and what reaches the terminal.

Names in descriptions, ledgers and runs come from outside. Text that may hold one is printed by `say`, a `screen` or
the log. None of them lets a name move the cursor or act as markup.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import DISK_FULL, InputError, PeerStopped, ProtocolError, cause_of

if TYPE_CHECKING:
    from rich.console import Console

OK, STOPPED, WRONG_USE, CHECK_FAILED, INTERRUPTED = 0, 1, 2, 3, 130
CLOSED_PIPE = 141
"""128 + SIGPIPE, as a shell shows it for other programs."""
EXIT_CODES = (
    "exit codes: 0 done; 1 the session was stopped (the line says by whom and where); "
    "2 wrong use or configuration; 3 a check failed; 130 interrupted"
)
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PEER_STOPPED = 4
"""The process stopped because a peer said that it stops. Only launchers see this code; people see STOPPED."""
CAUSE_FILE = "SCCVFL_CAUSE_FILE"
"""The variable with which an orchestrator names the file that gets the cause of a failure, in fixed words."""


def guarded(name: str, work: Callable[[], int], *, debug: bool = False) -> int:
    """Run the work of a process; an error becomes one line on standard error and an exit code.

    A reader that closes the pipe (`| head`) ends it without a line.
    """
    try:
        code = work()
        sys.stdout.flush()  # here, where a closed pipe is noticed
        return code
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and _output_closed():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
            return CLOSED_PIPE
        code, line = outcome_of(error)
        if debug:
            traceback.print_exc()
        if path := os.environ.get(CAUSE_FILE):
            Path(path).write_text(json.dumps(cause_of(error)), encoding="utf-8")
    say(f"{name}: {line}", error=True)
    return code


def _output_closed() -> bool:
    """Whether standard output is a pipe that nobody reads. Links to peers break with the same error."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(mask & select.POLLERR for _, mask in poll.poll(0))


def documented(code: int) -> int:
    return STOPPED if code == PEER_STOPPED else code


def say(line: str, *, error: bool = False) -> None:
    print(plain(line), file=sys.stderr if error else sys.stdout, flush=True)


def screen() -> Console:
    """For tables and colours: text is shown as it is, and only our own `rich.text.Text` has a style."""
    from rich.console import Console
    from rich.text import Text

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(plain(text), **{**options, "markup": False, "emoji": False})

    return Screen(width=None if sys.stdout.isatty() else 110)


def outcome_of(error: BaseException) -> tuple[int, str]:
    """Exit code and line for an error; SystemExit and the like pass through."""
    if isinstance(error, (ConfigError, InputError)):
        return WRONG_USE, str(error)
    if isinstance(error, PeerStopped):
        return PEER_STOPPED, str(error)
    if isinstance(error, ProtocolError):
        return STOPPED, str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return STOPPED, _full_disk(error.filename)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return WRONG_USE, f"cannot use {error.filename}: {error.strerror}"
    # The text of an unforeseen error may hold data; its type and place do not.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return STOPPED, f"unexpected {type(error).__name__} in {os.path.basename(frame.filename)}:{frame.lineno}"


def _full_disk(file: str | None) -> str:
    """Which file could not be written, how much room its disk has, and what to do."""
    description = "a file"
    if file is not None:
        description = str(file)
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(Path(file).absolute().parent).free
            description += f" ({free / 1e6:.1f} MB are free there)"
    return f"the disk is full: cannot write {description}; make room, or raise the limit of this user, and resume"


def start_logging(debug: bool) -> None:
    """Messages to standard error, a line each; warnings too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(_FORMAT))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    warnings.formatwarning = lambda message, category, *position: f"{category.__name__}: {message}"


@contextmanager
def log_kept(path: Path) -> Iterator[logging.Handler]:
    """Keep messages in a new file too, until the handler is closed or the work ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Line(_FORMAT))
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        close_log(handler)


def close_log(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    handler.close()


class _Line(logging.Formatter):
    """Puts every message on one line; only tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))
