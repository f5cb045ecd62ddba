"""Error types of a session. No message ever carries a key, a seed or a share."""

from __future__ import annotations

import errno
import re
from typing import Any, ClassVar

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when a file cannot grow."""


class ProtocolError(Exception):
    """Anything that must stop the session. The message is one line for a person; `kind` is what outsiders may read.

    Not a RuntimeError: CrypTen catches those in places and would try again.
    """

    kind: ClassVar[str] = "a step of the session failed"


class PeerError(ProtocolError):
    """A peer failed, or sent something that it must not send. Names the peer and the step."""

    kind = "a connection to a peer failed"

    def __init__(self, peer: str, step: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason} (step: {step})")
        self.peer, self.step, self.reason = peer, step, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.peer, self.step, self.reason)


class PeerLate(PeerError):
    """A peer did not answer in time."""

    kind = "a peer did not answer in time"


class PeerStopped(PeerError):
    """A peer reports that it stops, and why. If answers were missing, `waited_for` names the peers that owed them."""

    kind = "a peer stopped"

    def __init__(self, peer: str, step: str, note: str, waited_for: str = "") -> None:
        super().__init__(peer, step, f"stopped: {note}")
        self.note, self.waited_for = note, waited_for

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.peer, self.step, self.note, self.waited_for)


class ConfigurationMismatch(PeerError):
    """Two processes would run different sessions or different code."""

    kind = "the session file or the code differs from a peer's"


class UndeclaredRelease(ProtocolError):
    """An attempt to open a secret without a declared release."""


class CounterReuse(ProtocolError):
    """A stream was asked for the same random ring elements twice."""


class LocalError(ProtocolError):
    """An error about a party's own data or ledger. Only people at this party see it; peers receive only its kind."""

    kind = "its own data, files or ledger do not allow it"


class LedgerRefusal(LocalError):
    """This party's ledger refuses a charge, or cannot be read."""

    kind = "its privacy ledger does not allow it"


class RangeError(LocalError, ValueError):
    """A value does not fit the fixed-point range, or the bound that its caller promised."""

    kind = "a value is out of range"


class InputError(LocalError, ValueError):
    """A person's input cannot be used: data, a description, a policy card, a model."""

    kind = "its data, or other files that it was given, cannot be used"


class Unavailable(ProtocolError, AttributeError):
    """A CrypTen function without a sound meaning here. It is an AttributeError, so that hasattr says no."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not available on a session")


class LogError(ProtocolError):
    """A hash-chained log is torn, edited, or differs between the parties."""


def reason_for_peers(error: BaseException | None) -> str:
    """The reason sent to peers when this process stops: our own errors in full, only the type of others.

    A LocalError speaks about a party's own inputs, so peers receive only its kind and type.
    """
    name = type(error).__name__
    if isinstance(error, LocalError):
        return f"{error.kind} ({name})"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return "its disk is full"
    return str(error) if isinstance(error, ProtocolError) else name


def cause_of(error: BaseException) -> tuple[str, str]:
    """A fixed phrase for the kind of error, and the members at fault (`party-1, dealer`); not its text.

    For readers outside the consortium, such as an orchestrator.
    """
    named = re.findall(r"(?:^|, )(party \d+|dealer)\b", error.peer) if isinstance(error, PeerError) else []
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return "its disk is full", ""
    kind = error.kind if isinstance(error, ProtocolError) else "an unexpected error"
    return kind, ", ".join(name.replace(" ", "-") for name in named)


def waited_for(error: BaseException | None) -> str:
    """The names of those whose answer was missed, here or at the peer that stopped; otherwise empty."""
    if isinstance(error, PeerLate):
        return error.peer
    return error.waited_for if isinstance(error, PeerStopped) else ""
