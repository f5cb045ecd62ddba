"""The public settings of one session, equal on every process, and their digest.

Nothing here is secret. Paths of one host (certificates, output folders) are passed to each process separately. All
processes compare `SessionConfig.digest()` and `code_digest()` before anything secret is sent.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.errors import ProtocolError

TRANSPORTS = ("tls", "gloo")
"""`gloo` was removed: it is accepted so that session files of old runs still load, but no session can use it."""
APPROVALS = ("", "required", "none")
CRYPTEN = "0.4.1"
"""The version of CrypTen whose internals `protocols.session` replaces; no other is used."""
SEMI_HONEST, ACTIVE = SECURITY = ("semi-honest", "active")
COVERS: Mapping[str, str] = {
    SEMI_HONEST: "This needs parties that follow the protocol, which nothing proves, and a dealer that colludes with "
    "nobody.",
    ACTIVE: "If a party deviates from the protocol, the others abort and use no result. This needs one honest party "
    "and a dealer that colludes with nobody. Which inputs and which own noise a party gives is not proven.",
}
"""What each level of security covers, for plans and reports."""
SHARD_KINDS = ("local", "ray")
MOST_SHARDS = 64
DEALER = "dealer"
"""The dealer's name for the others."""
SOURCES = "sources of "
CONNECT_BY_HAND = 600.0
"""Seconds to find each other in a session file that pins certificates and does not say how many."""
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

    kind = "its configuration is refused"


def unknown_name(what: str, name: str, available: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest one that does."""
    names = sorted(available)
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"available: {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def wrong_kind(value: object, kind: Any) -> str | None:
    """The kind that a value of a TOML file should have had, or None if it has it; true is not a number."""
    wanted, types = KINDS[kind]
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    return None if fits else f"must be {wanted}, not {value!r}"


@dataclass(frozen=True)
class SessionConfig:
    """The members of a session, their connections, and the jobs they run.

    parties: host:port of each party, by rank. Each listens there; higher ranks and the
      dealer connect to lower ones, so the dealer needs no open port.
    connect: seconds for all processes to start and find each other. A session file that pins certificates and does
      not say allows ten minutes.
    deadline: seconds that a process waits for a peer's message before it gives up.
    idle: seconds that the dealer waits for work, since parties may compute locally for long.
    job, options: what runs, and its own settings.
    jobs: what a host runs one after the other, each in a separate session; only `job` if empty.
    names: what messages call the parties, by rank.
    certificates: SHA-256 of the certificate of each node (`party-0`, ..., `dealer`). If any is given, all are, and
      no other certificate is accepted, whoever signed it.
    approval: `required` if every party must have signed the plan, `none` if not; empty: as certificates are given.
    shards: rows of training lie in so many sessions (`count`), whose workers at each party are processes on its host
      (`kind` local) or actors in its own Ray cluster (ray). `addresses`: of each shard the parties' workers, by rank;
      by default the party's host, at the next ports.
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
    jobs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    certificates: dict[str, str] = field(default_factory=dict)
    approval: str = ""
    shards: dict[str, Any] = field(default_factory=dict)

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
        self._check_people()
        if self.options.get("security", SEMI_HONEST) not in SECURITY:
            raise ConfigError(f"security must be one of {', '.join(SECURITY)}, not {self.options['security']!r}")
        if self.shards:
            self._check_shards()

    def _check_people(self) -> None:
        if self.names and (len(self.names) != len(self.parties) or len(set(self.names)) != len(self.names)):
            raise ConfigError(f"names must give each of the {len(self.parties)} parties its own, not {self.names}")
        nodes = {node_folder(node, self.dealer) for node in range(self.dealer + 1)}
        if self.certificates and set(self.certificates) != nodes:
            raise ConfigError(f"certificates must have one entry for each of {', '.join(sorted(nodes))}")
        if self.certificates and self.transport != "tls":
            raise ConfigError(f"certificates are pinned, and the transport {self.transport!r} shows none: use tls")
        for node, print_ in self.certificates.items():
            if not (isinstance(print_, str) and len(print_) == 64 and set(print_) <= set("0123456789abcdef")):
                raise ConfigError(f"certificates: {node} must be the SHA-256 of a certificate in hexadecimal digits")
        if self.approval not in APPROVALS:
            raise ConfigError(f"approval must be one of {', '.join(APPROVALS[1:])}, not {self.approval!r}")
        if self.approval == "required" and not self.certificates:
            raise ConfigError("approval is required: the session file must name the certificates that approve")

    def _check_shards(self) -> None:
        if unknown := sorted(set(self.shards) - {"count", "kind", "addresses"}):
            raise ConfigError(f"[shards]: {unknown_name('setting', unknown[0], ('count', 'kind', 'addresses'))}")
        count, kind = self.shards.get("count"), self.shards.get("kind", SHARD_KINDS[0])
        if wrong_kind(count, int) is not None or not 1 <= int(count or 0) <= MOST_SHARDS:
            raise ConfigError(f"[shards]: count must be a whole number from 1 to {MOST_SHARDS}, not {count!r}")
        if self.active:
            raise ConfigError("[shards]: shards have no MAC tags: use security = semi-honest, or no shards")
        if kind not in SHARD_KINDS:
            raise ConfigError(f"[shards]: {unknown_name('kind', str(kind), SHARD_KINDS)}")
        every = [address for shard in range(count or 0) for address in self.shard_addresses(shard)]
        if len({*every, *self.parties}) < len(every) + len(self.parties):
            raise ConfigError("[shards]: two processes have the same address; give addresses, or parties other ports")

    def shard_addresses(self, shard: int) -> tuple[str, ...]:
        """Where the workers of a shard listen, by rank of their party."""
        if "addresses" not in self.shards:
            hosts = [address.rpartition(":")[0] for address in self.parties]
            ports = [split_address(address)[1] + 1 + shard for address in self.parties]
            return tuple(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        addresses = self.shards["addresses"]
        if not isinstance(addresses, list) or [len(row) for row in addresses] != [len(self.parties)] * len(addresses):
            raise ConfigError("[shards]: addresses must list, for each shard, one host:port for each party")
        if shard >= len(addresses):
            raise ConfigError(f"[shards]: addresses has {len(addresses)} shards; count is {self.shards.get('count')}")
        return tuple(map(str, addresses[shard]))

    @property
    def needs_approval(self) -> bool:
        """Whether every party must have signed the plan."""
        return (self.approval or ("required" if self.certificates else "none")) == "required"

    @property
    def active(self) -> bool:
        """Whether every opened value is authenticated, so that parties that deviate are detected."""
        return self.security == ACTIVE

    @property
    def security(self) -> str:
        return str(self.options.get("security", SEMI_HONEST))

    def for_job(self, job: str) -> SessionConfig:
        """The session of one of the jobs."""
        return replace(self, job=job)

    @property
    def dealer(self) -> int:
        """The dealer's node: the one after the last party."""
        return len(self.parties)

    def node_name(self, node: int) -> str:
        if node == self.dealer:
            return DEALER
        return f"party {node} ({self.names[node]})" if self.names else f"party {node}"

    def digest(self) -> bytes:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()

    def to_toml(self) -> str:
        tables = ("certificates", "options", "shards")
        lines = [f"{f.name} = {json.dumps(getattr(self, f.name))}" for f in fields(self) if f.name not in tables]
        for table in tables:
            lines += ["", f"[{table}]"]
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in getattr(self, table).items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def load(
        cls, path: Path, prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content
    ) -> SessionConfig:
        """Read a session file; a wrong key or type is a one-line error. `prepare` may first rewrite its content."""
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"cannot read the session file {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not saved as UTF-8; save it as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        try:
            data = prepare(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        settings = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - settings):
            raise ConfigError(f"{path}: {unknown_name('setting', unknown[0], settings)}")
        if not isinstance(data.get("parties"), list):
            raise ConfigError(f"{path}: 'parties' must list one host:port for each party")
        kinds = {"name": str, "transport": str, "job": str, "frame_limit": int, "options": dict}
        kinds |= {"shards": dict, "jobs": list, "names": list, "certificates": dict, "approval": str}
        for key, value in data.items():
            if key != "parties" and (odd := wrong_kind(value, kinds.get(key, float))) is not None:
                raise ConfigError(f"{path}: {key} {odd}")
        for key in ("parties", "jobs", "names"):
            if not all(isinstance(value, str) for value in data.get(key, [])):
                raise ConfigError(f"{path}: {key} must be a list of texts in quotes")
            data[key] = tuple(data.get(key, []))
        if data.get("certificates"):  # people start these by hand, each on their own host
            data.setdefault("connect", CONNECT_BY_HAND)
        return cls(**data)


def node_folder(node: int, parties: int) -> str:
    return DEALER if node == parties else f"party-{node}"


def can_receive(node: int, parties: int) -> bool:
    """Whether values may be opened to a node: to parties, never to the dealer."""
    return 0 <= node < parties


def receiver_name(node: int, names: Sequence[str]) -> str:
    """The name of a node on pages, if the parties have these names."""
    return names[node] if node < len(names) else node_folder(node, len(names))


def split_address(address: str) -> tuple[str, int]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"an address must look like host:port, not {address!r}")
    return host.strip("[]"), int(port)


@cache
def code_parts() -> dict[str, str]:
    """A digest of the sources of each of our packages, and the versions of the libraries that compute."""
    root = Path(__file__).parent.parent  # secure_sccvfl, in a clone as in a wheel
    parts: dict[str, str] = {}
    for package in ("accounting", "launch", "protocols", ""):
        digest = hashlib.sha256()
        for path in sorted((root / package).rglob("*.py")):
            place = path.relative_to(root)
            if package or place.parts[0] not in ("accounting", "launch", "protocols", "bundled"):
                digest.update(f"{place.as_posix()}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        parts[f"{SOURCES}{package or root.name}"] = digest.hexdigest()
    return parts | {"torch": public_version("torch"), "crypten": CRYPTEN, "numpy": public_version("numpy")}


def public_version(library: str) -> str:
    """The installed version without its build: two builds of a version, such as 2.13.0+cpu, compute the same."""
    return importlib.metadata.version(library).partition("+")[0]


def code_digest() -> bytes:
    """SHA-256 over our own sources and the versions of the libraries that compute."""
    return hashlib.sha256(json.dumps(code_parts()).encode()).digest()
