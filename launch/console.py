"""What the programs share: one-line errors, exit codes, and who may see a traceback."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import traceback
from collections.abc import Callable

from protocols.config import ConfigError
from protocols.errors import ProtocolError

OK, STOPPED, WRONG_USE, CHECK_FAILED, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES = (
    "exit codes: 0 done; 1 the session was stopped (the line says by whom and where); "
    "2 wrong use or configuration; 3 a check failed; 130 interrupted"
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def guarded(name: str, work: Callable[[], int], *, debug: bool = False) -> int:
    """Run a program; what goes wrong becomes one line on standard error and an exit code."""
    try:
        return work()
    except ConfigError as error:
        code, line = WRONG_USE, str(error)
    except ProtocolError as error:
        code, line = STOPPED, str(error)
    except KeyboardInterrupt:
        code, line = INTERRUPTED, "interrupted"
    except Exception as error:
        code, line = STOPPED, str(error)
        if isinstance(error, ValueError):
            code = WRONG_USE
        if not getattr(error, "for_operator", False):
            # The text of an unforeseen error may hold data; its type and place do not.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            code = STOPPED
            line = f"unexpected {type(error).__name__} in {os.path.basename(frame.filename)}:{frame.lineno}"
    if debug:
        traceback.print_exc()
    print(f"{name}: {line}", file=sys.stderr, flush=True)
    return code


def keep_freed_memory() -> None:
    """Ask glibc to reuse large blocks instead of returning them: arrays come and go in every round."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def start_logging(debug: bool) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
