"""The public settings of one session, the same on every process, and their digest.

Nothing here is secret. Paths of one host (certificates, output folders) are not part of it; each process gets them
separately. All processes compare `SessionConfig.digest()` and `code_digest()` before anything secret is sent.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tomllib
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from protocols.errors import ProtocolError

TRANSPORTS = ("tls", "gloo")
DEALER = "dealer"
"""The dealer's name for the others."""
KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("text in quotes", (str,)),
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    list: ("a list", (list,)),
    dict: ("a table", (dict,)),
}


class ConfigError(ProtocolError, ValueError):
    """A setting is missing or cannot work."""


def wrong_kind(value: object, kind: Any) -> str | None:
    """The kind that a value of a TOML file should have had, or None if it has it; true is not a number."""
    wanted, types = KINDS[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    return None if fits else f"must be {wanted}, not {value!r}"


@dataclass(frozen=True)
class SessionConfig:
    """Who takes part, how they talk, and what they run.

    parties: host:port of each party, by rank. Each listens there; higher ranks and the
      dealer connect to lower ones, so the dealer needs no open port.
    connect: seconds for all processes to start and find each other.
    deadline: seconds that a process waits for a peer's message before it gives up.
    idle: seconds that the dealer waits for work, since parties may compute locally for long.
    job, options: what runs, and its own settings.
    """

    parties: tuple[str, ...]
    name: str = "session"
    transport: str = "tls"
    connect: float = 60.0
    deadline: float = 60.0
    idle: float = 3600.0
    frame_limit: int = 1 << 31
    job: str = "selftest"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.parties) < 2:
            raise ConfigError(f"a session needs at least 2 parties, got {len(self.parties)}")
        for address in self.parties:
            split_address(address)
        if len(set(self.parties)) != len(self.parties):
            raise ConfigError("two parties have the same address")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport must be one of {', '.join(TRANSPORTS)}, not {self.transport!r}")
        for name in ("connect", "deadline", "idle"):
            if not 0 < getattr(self, name) <= 86_400:
                raise ConfigError(f"{name} must be between 0 and 86400 seconds, not {getattr(self, name)}")
        if self.frame_limit < 1 << 16:
            raise ConfigError(f"frame_limit must be at least 65536 bytes, not {self.frame_limit}")

    @property
    def dealer(self) -> int:
        """The dealer's place: the one after the last party."""
        return len(self.parties)

    def node_name(self, node: int) -> str:
        return DEALER if node == self.dealer else f"party {node}"

    def digest(self) -> bytes:
        """SHA-256 of every setting."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()

    def to_toml(self) -> str:
        """The text that `load` reads back."""
        lines = [f"{f.name} = {json.dumps(getattr(self, f.name))}" for f in fields(self) if f.name != "options"]
        lines += ["", "[options]"]
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in self.options.items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def load(cls, path: Path) -> SessionConfig:
        """Read a session file; a wrong key or type is a one-line error."""
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"cannot read the session file {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not saved as UTF-8; save it so") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ConfigError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
        if not isinstance(data.get("parties"), list):
            raise ConfigError(f"{path}: 'parties' must list one host:port for each party")
        kinds = {"name": str, "transport": str, "job": str, "frame_limit": int, "options": dict}
        for key, value in data.items():
            if key != "parties" and (odd := wrong_kind(value, kinds.get(key, float))) is not None:
                raise ConfigError(f"{path}: {key} {odd}")
        data["parties"] = tuple(data["parties"])
        return cls(**data)


def split_address(address: str) -> tuple[str, int]:
    """'host:port' to its parts."""
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"an address must look like host:port, not {address!r}")
    return host.strip("[]"), int(port)


@cache
def code_digest() -> bytes:
    """SHA-256 over our own sources and the versions of the libraries that compute."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in ("accounting", "launch", "protocols", "secure_sccvfl"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    for library in ("torch", "crypten", "numpy"):
        digest.update(f"{library}={importlib.metadata.version(library)}\0".encode())
    return digest.digest()
