"""Which setting, library or package differs between two members of a session.

Members compare one digest of all settings and one of the code. Where one differs, both sides send what these digests
cover, key by key, and stop. Settings of a session are public to its members, and the peer has shown its certificate
by then. Values are cut; a long one carries a digest of the whole, so that a difference beyond the cut is seen too.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict

from protocols.config import SOURCES, SessionConfig
from protocols.errors import ConfigurationMismatch

MOST_BYTES = 1 << 18
"""The longest list of settings that is read from a peer."""
_SHOWN, _KEYS, _SECONDS = 60, 3, 3.0
_LENGTH = struct.Struct(">I")
_ABSENT = "not set"


def settings_by_key(config: SessionConfig) -> dict[str, str]:
    """Every setting by its key, tables flattened (`options.seed`), each as a short text that stands for its value."""
    found: dict[str, str] = {}
    for key, value in asdict(config).items():
        entries = (
            {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
        )
        for name, inner in entries.items():
            text = json.dumps(inner, sort_keys=True)
            if len(text) > _SHOWN:
                text = f"{text[: _SHOWN - 20]}... (digest {hashlib.sha256(text.encode()).hexdigest()[:12]})"
            found[name] = text
    return found


def told(name: str, what: str, own: Mapping[str, str], theirs: Mapping[str, str] | None) -> ConfigurationMismatch:
    """The error about a peer that has another configuration or other code, with the keys that differ."""
    keys = [] if theirs is None else [key for key in {**own, **theirs} if own.get(key) != theirs.get(key)]
    shown = [_difference(_clean(key), own.get(key), (theirs or {}).get(key)) for key in keys[:_KEYS]]
    if len(keys) > _KEYS:
        shown.append(f"and {len(keys) - _KEYS} more")
    return ConfigurationMismatch(name, "connect", f"{what}: {'; '.join(shown)}" if shown else what)


def _difference(key: str, here: str | None, there: str | None) -> str:
    if key.startswith(SOURCES):
        return f"other {key}"
    return f"{key} is {_ABSENT if there is None else _clean(there)} there and {here or _ABSENT} here"


def exchanged(sock: socket.socket, own: Mapping[str, str]) -> dict[str, str] | None:
    """Send our list and read the peer's; None if it sends none that can be read."""
    try:
        sock.settimeout(_SECONDS)  # a peer that lied in its hello waits for other words
        text = json.dumps(dict(own)).encode()
        sock.sendall(_LENGTH.pack(len(text)) + text)
        (size,) = _LENGTH.unpack(_received(sock, _LENGTH.size))
        came = json.loads(_received(sock, size)) if size <= MOST_BYTES else None
    except (OSError, ValueError, struct.error, RecursionError):
        return None
    if not isinstance(came, dict) or not all(isinstance(value, str) for value in came.values()):
        return None
    return came


def _received(sock: socket.socket, size: int) -> bytes:
    came = bytearray()
    while len(came) < size and (part := sock.recv(min(size - len(came), 1 << 16))):
        came += part
    return bytes(came)


def _clean(text: str) -> str:
    """What a peer says, as one short piece of printable text."""
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= 2 * _SHOWN else printable[: 2 * _SHOWN] + "..."
