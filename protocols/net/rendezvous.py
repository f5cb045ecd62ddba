"""How the processes of a session connect and authenticate: the only module that opens sockets.

Node i dials all lower nodes, and all higher ones dial it (the dealer has the highest number, so it needs no open
port). After the TLS handshake both sides send a fixed-size hello: their node, the digest of the configuration and of
the code. The node must be the one in the peer's certificate, and the digests must be equal. If not, both sides send
what the digests cover, key by key (public settings; long values are cut and carry a digest), name the keys that
differ, and stop. A caller without a certificate of our authority is turned away, and waiting goes on. A member that
contradicts itself stops the session, and the process that detects it informs the others, also those that connect
within the next minute. A process that cannot take part still meets the others, only to report this (`refuse`).

A session file may pin the certificate of every node. Then no other one is accepted, even if the authority signed it:
a process that dials stops and says so, and a caller is turned away like any stranger.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from secure_sccvfl.protocols.config import (
    SOURCES,
    ConfigError,
    SessionConfig,
    code_digest,
    code_parts,
    node_folder,
    split_address,
)
from secure_sccvfl.protocols.errors import ConfigurationMismatch, PeerError, ProtocolError, reason_for_peers
from secure_sccvfl.protocols.net.certificates import (
    SHOWN,
    Credentials,
    certified_node,
    check_own_clock,
    clock_words,
    fingerprint,
    own_period,
)
from secure_sccvfl.protocols.net.link import Activity, Link, why

log = logging.getLogger(__name__)

_HELLO = struct.Struct(">8sHH32s32s")
_MAGIC, PREFLIGHT = b"sccvfl01", b"sccvflpf"
_MAX_PENDING_CALLERS = 32
_LOOK_SECONDS = 0.2
_SAY_SECONDS = 10.0  # how often people receive for whom this process waits
_TELL_SECONDS = 60.0  # how long a process that found a contradiction stays to report it to later ones
_STRANGER_SECONDS = 3.0  # how long a caller may take to show who it is


def listen(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_MAX_PENDING_CALLERS)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        hint = "choose another port, or end what uses it"
        if error.errno != errno.EADDRINUSE:
            hint = "name an address of this host (--listen HOST:PORT)"
        raise ProtocolError(f"cannot listen on {address}: {reason}; {hint}") from None


def listen_anywhere() -> tuple[socket.socket, str]:
    server = socket.create_server(("127.0.0.1", 0), backlog=_MAX_PENDING_CALLERS)
    return server, f"127.0.0.1:{server.getsockname()[1]}"


def dial(address: str, seconds: float) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=seconds)


class Rendezvous:
    """Dialling and being dialled, each connection in its own short-lived thread."""

    magic = _MAGIC

    def __init__(
        self,
        config: SessionConfig,
        node: int,
        credentials: Credentials,
        listener: socket.socket | None,
        activity: Activity | None = None,
    ) -> None:
        self.config, self.node, self.credentials = config, node, credentials
        self.hello = _HELLO.pack(self.magic, node, len(config.parties), config.digest(), code_digest())
        self.client = credentials.context(server=False)
        self.server = credentials.context(server=True)
        check_own_clock(credentials)
        if other := self._unpinned(fingerprint(credentials.certificate.read_bytes()), node):
            raise ConfigError(f"{credentials.certificate}: {other}; pin the new one, or bring the old one back")
        self.callers = set(range(node + 1, config.dealer + 1))
        self.listener = listener
        if self.callers and listener is None:
            self.listener = listen(config.parties[node])
        self.end = time.monotonic() + config.connect
        self.said = time.monotonic()
        self.activity = Activity() if activity is None else activity
        self.peers = {peer: config.node_name(peer) for peer in range(config.dealer + 1) if peer != node}
        self.stop = threading.Event()
        self.reason = ""  # why this process has given up, for peers that connect afterwards
        self.giving = threading.Lock()
        self.handshakes: list[threading.Thread] = []
        self.found: queue.Queue[tuple[int, ssl.SSLSocket] | Exception] = queue.Queue()
        self.refused: list[str] = []
        self.unreached: dict[int, str] = {}  # why the last attempt to dial a node failed
        self.pending = threading.BoundedSemaphore(_MAX_PENDING_CALLERS)

    def run(self) -> dict[int, Link]:
        links: dict[int, Link] = {}
        self._begin()
        try:
            while len(links) < len(self.peers):
                received = self._next()
                if received is None:
                    if time.monotonic() > self.end:
                        raise self._missing(links)
                    self._say_who_is_missing(links)
                    for link in links.values():
                        link.read("connect")  # a peer that has given up says so
                    continue
                if isinstance(received, Exception):
                    self._tell_all(links, received)
                    raise received
                if received.node in links:
                    raise PeerError(received.name, "connect", "connected twice")
                links[received.node] = received
                self.activity.joined(received)
        except BaseException as error:
            self._give_up(reason_for_peers(error))
            self._abort(links, error)
            raise
        finally:
            self._end()
        return links

    def refuse(self, reason: str) -> list[str]:
        """Meet the others only to report why this process does not take part; returns who received it.

        It ends when every other node was informed or has given up, at the latest when the time to connect is over.
        """
        self._begin()
        try:
            return self._tell(reason, 0, self.end)
        finally:
            self._end()

    def _tell(self, reason: str, informed: int, end: float) -> list[str]:
        """Send the reason to every node that connects until `end`; `informed` nodes have it. Returns the others."""
        met: list[str] = []
        while len(met) + informed < len(self.peers) and time.monotonic() < end:
            received = self._next()
            if isinstance(received, Link):
                received.abort(reason)
                met.append(received.name)
            elif received is not None:
                informed += 1
        return met

    def _tell_all(self, links: dict[int, Link], error: Exception) -> None:
        """Send the reason for stopping to connected peers, and for a while to new ones."""
        know = len(links) + 1
        self._abort(links, error)
        if know < len(self.peers):
            log.warning("%s; it stops, and informs the others as they connect", error)
            self._tell(reason_for_peers(error), know, min(self.end, time.monotonic() + _TELL_SECONDS))

    @staticmethod
    def _abort(links: dict[int, Link], error: BaseException) -> None:
        while links:
            links.popitem()[1].abort(reason_for_peers(error))

    def _begin(self) -> None:
        self.activity.connecting(self.peers, self.end)
        for peer in range(self.node):
            self._start(self._dial, peer)
        if self.callers:
            threading.Thread(target=self._accept, daemon=True).start()

    def _next(self) -> Link | Exception | None:
        """The next peer, or why one will not connect; None if none connected for a moment."""
        try:
            received = self.found.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return None
        if isinstance(received, Exception):
            return received
        return self._link(*received)

    def _end(self) -> None:
        self.stop.set()
        if self.listener is not None:
            with contextlib.suppress(OSError):  # a thread that still waits for callers would keep the address
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()

    def _say_who_is_missing(self, links: dict[int, Link]) -> None:
        now = time.monotonic()
        if now - self.said >= _SAY_SECONDS:
            self.said = now
            names = ", ".join(name for peer, name in self.peers.items() if peer not in links)
            log.info("waiting for %s, %.0f s left", names, self.end - now)

    def _missing(self, links: dict[int, Link]) -> PeerError:
        names = [name for peer, name in self.peers.items() if peer not in links]
        telling = [who for who in self.refused if "certificate" in who] or self.refused
        turned_away = f"; turned away: {telling[-1]}" if telling else ""
        routes = "; ".join(self.route(peer) for peer in self.peers if peer not in links)
        return PeerError(
            ", ".join(names), "connect", f"did not connect within {self.config.connect:.0f} s ({routes}){turned_away}"
        )

    def route(self, peer: int) -> str:
        """Which side dials, for a peer that was not reached, and the outcome."""
        if peer > self.node:
            return f"{node_folder(peer, self.config.dealer)} did not reach {self.config.parties[self.node]}"
        return f"dialled {self.config.parties[peer]}: {self.unreached.get(peer, 'no answer')}"

    def _left(self) -> float:
        return max(0.01, self.end - time.monotonic())

    def _dial(self, peer: int) -> None:
        name, address = self.config.node_name(peer), self.config.parties[peer]
        while not self.stop.is_set() and time.monotonic() < self.end:
            try:
                raw = dial(address, self._left())
            except OSError as error:
                self.unreached[peer] = error.strerror or str(error) or type(error).__name__
                self.stop.wait(0.05)
                continue
            try:
                sock = self._secure(raw, self.client, self._left(), server=False)
            except (ConnectionError, ssl.SSLEOFError, TimeoutError) as error:
                self.unreached[peer] = f"connected, but no TLS handshake ({why(error)})"
                raw.close()  # the peer is too busy or just starting: try again, while there is time
                self.stop.wait(0.05)
                continue
            except (OSError, ValueError) as error:
                raw.close()
                self.found.put(PeerError(name, "connect", f"TLS handshake failed: {_reason(error)}"))
                return
            try:
                self._check(sock, peer, name)
                self._give(peer, sock)
            except PeerError as error:
                sock.close()
                self.found.put(error)
            except (OSError, ValueError) as error:
                sock.close()
                self.found.put(PeerError(name, "connect", f"refused the connection ({self._refusal(error)})"))
            return

    def _accept(self) -> None:
        listener = self.listener
        while listener is not None and not self.stop.is_set():
            try:
                listener.settimeout(0.1)
                raw, address = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the caller is gone, or no handles are free: wait a little, until `stop` ends it
                self.stop.wait(0.05)
                continue
            if not self.pending.acquire(blocking=False):
                raw.close()
                continue
            self._start(self._answer, raw, f"{address[0]}:{address[1]}")

    def _answer(self, raw: socket.socket, caller: str) -> None:
        try:
            try:
                sock = self._secure(raw, self.server, min(self._left(), _STRANGER_SECONDS), server=True)
            except (OSError, ValueError) as error:
                raw.close()
                self._turn_away(f"{caller} ({_reason(error)})")
                return
            node = certified_node(sock.getpeercert() or {}, self.config.dealer)
            if node not in self.callers:
                sock.close()
                self._turn_away(f"{caller} (its certificate names no node that should connect here)")
                return
            if other := self._unpinned(_shown(sock), node):
                sock.close()
                self._turn_away(f"{caller}, which says it is {self.config.node_name(node)} ({other})")
                return
            try:
                self._check(sock, node, self.config.node_name(node))
                self._give(node, sock)
            except PeerError as error:
                sock.close()
                self.found.put(error)
            except (OSError, ValueError) as error:
                sock.close()
                self._turn_away(f"{self.config.node_name(node)} ({why(error)})")
        finally:
            self.pending.release()

    def _give(self, peer: int, sock: ssl.SSLSocket) -> None:
        """Hand over a connection. If this process has given up, send the peer the reason instead."""
        with self.giving:
            if not self.stop.is_set():
                self.found.put((peer, sock))
                return
        if self.reason:
            self._link(peer, sock).abort(self.reason)
        else:
            sock.close()

    def _start(self, handshake: Callable[..., None], *given: Any) -> None:
        """Run a handshake in a separate thread. `_give_up` in another thread sees it only once it has started."""
        thread = threading.Thread(target=handshake, args=given, daemon=True)
        with self.giving:
            thread.start()
            self.handshakes = [thread, *(other for other in self.handshakes if other.is_alive())]

    def _give_up(self, reason: str) -> None:
        """Stop, and send the reason to peers that have connected but were not taken from the queue yet.

        A handshake that is under way may take a little longer, so that its peer receives the reason too.
        """
        with self.giving:
            self.reason = reason
            self.stop.set()
            handshakes = self.handshakes
        end = time.monotonic() + _STRANGER_SECONDS
        for thread in handshakes:
            thread.join(max(0.0, end - time.monotonic()))
        while not self.found.empty():
            if isinstance(late := self.found.get(), tuple):
                self._link(*late).abort(reason)

    def _link(self, peer: int, sock: ssl.SSLSocket) -> Link:
        return Link(sock, peer, self.peers[peer], self.config.frame_limit)

    def _turn_away(self, who: str) -> None:
        if len(self.refused) < 100:
            self.refused.append(who)
            log.warning("turned away %s", who)

    def _secure(self, raw: socket.socket, context: ssl.SSLContext, seconds: float, *, server: bool) -> ssl.SSLSocket:
        try:
            raw.getpeername()
        except OSError:
            raise ConnectionResetError("gone before the handshake") from None
        raw.settimeout(seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        secure = context.wrap_socket(raw, server_side=server)
        secure.settimeout(self._left())
        return secure

    def _unpinned(self, shown: str, node: int) -> str:
        """Why a certificate is not the one that the session file pins for a node; empty if it is, or none is."""
        member = node_folder(node, self.config.dealer)
        pin = self.config.certificates.get(member, shown)
        if shown == pin:
            return ""
        return (
            f"its certificate {shown[:SHOWN]} is not the one that the session file pins for {member}, {pin[:SHOWN]}"
        )

    def _check(self, sock: ssl.SSLSocket, expected: int, name: str) -> None:
        """Exchange hellos; the certificate, the claim and the digests must all agree."""
        certified = certified_node(sock.getpeercert() or {}, self.config.dealer)
        if certified != expected:
            shown = "no node of this session" if certified is None else self.config.node_name(certified)
            raise PeerError(name, "connect", f"its certificate is for {shown}")
        if other := self._unpinned(_shown(sock), expected):
            raise PeerError(name, "connect", other)
        sock.sendall(self.hello)
        received = b""
        while len(received) < _HELLO.size:
            part = sock.recv(_HELLO.size - len(received))
            if not part:
                raise PeerError(name, "connect", "closed the connection during the handshake")
            received += part
        magic, node, parties, configuration, code = _HELLO.unpack(received)
        if magic != self.magic:
            runs = {_MAGIC: "runs a session", PREFLIGHT: "runs `sccvfl preflight`"}.get(magic)
            reason = f"{runs}, and this process does not" if runs else "does not speak this protocol"
            raise PeerError(name, "connect", reason)
        if node != expected:
            claimed = self.config.node_name(node) if node <= self.config.dealer else f"node {node}"
            raise PeerError(name, "connect", f"its certificate is for {name}, but its handshake says {claimed}")
        self._compare(sock, name, parties, configuration, code)

    def _compare(self, sock: ssl.SSLSocket, name: str, parties: int, configuration: bytes, code: bytes) -> None:
        """Refuse a peer that has another configuration or other code."""
        if parties != len(self.config.parties) or configuration != self.config.digest():
            local = settings_by_key(self.config)
            raise mismatch(name, "has another configuration", local, exchange_settings(sock, local))
        if code != code_digest():
            local = code_parts()
            raise mismatch(name, "runs another version of the code", local, exchange_settings(sock, local))

    def _refusal(self, error: Exception) -> str:
        """Why a peer does not accept this process. If it is about our certificate, with the times that matter."""
        reason = why(error)
        if "certificate" in reason or "unknown ca" in reason:
            reason += f": it does not accept our certificate, which is {own_period(self.credentials)}"
        return reason


def _reason(error: Exception) -> str:
    return why(error) + clock_words(error)


def _shown(sock: ssl.SSLSocket) -> str:
    return hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()


MOST_BYTES = 1 << 18
"""The longest list of settings that is read from a peer."""
_SHOWN, _KEYS, _SECONDS = 60, 3, 3.0
_LENGTH = struct.Struct(">I")
_ABSENT = "not set"


def settings_by_key(config: SessionConfig) -> dict[str, str]:
    """Every setting by its key, tables flattened (`options.seed`), each as a short text that stands for its value."""
    result: dict[str, str] = {}
    for key, value in asdict(config).items():
        entries = (
            {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
        )
        for name, inner in entries.items():
            text = json.dumps(inner, sort_keys=True)
            if len(text) > _SHOWN:
                text = f"{text[: _SHOWN - 20]}... (digest {hashlib.sha256(text.encode()).hexdigest()[:12]})"
            result[name] = text
    return result


def mismatch(
    name: str, what: str, local: Mapping[str, str], theirs: Mapping[str, str] | None
) -> ConfigurationMismatch:
    """The error about a peer that has another configuration or other code, with the keys that differ."""
    keys = [] if theirs is None else [key for key in {**local, **theirs} if local.get(key) != theirs.get(key)]
    shown = [difference(key, local.get(key), (theirs or {}).get(key)) for key in keys[:_KEYS]]
    if len(keys) > _KEYS:
        shown.append(f"and {len(keys) - _KEYS} more")
    return ConfigurationMismatch(name, "connect", f"{what}: {'; '.join(shown)}" if shown else what)


def difference(key: str, here: str | None, there: str | None) -> str:
    """What differs under a key, for people."""
    key = _clean(key)
    if key.startswith(SOURCES):
        return f"other {key}"
    return f"{key} is {_ABSENT if there is None else _clean(there)} there and {here or _ABSENT} here"


def exchange_settings(sock: socket.socket, local: Mapping[str, str]) -> dict[str, str] | None:
    """Send our list and read the peer's; None if it cannot be read."""
    try:
        sock.settimeout(_SECONDS)  # a peer that lied in its hello waits for other words
        text = json.dumps(dict(local)).encode()
        sock.sendall(_LENGTH.pack(len(text)) + text)
        (size,) = _LENGTH.unpack(received(sock, _LENGTH.size))
        theirs = json.loads(received(sock, size)) if size <= MOST_BYTES else None
    except (OSError, ValueError, struct.error, RecursionError):
        return None
    if not isinstance(theirs, dict) or not all(isinstance(value, str) for value in theirs.values()):
        return None
    return theirs


def received(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer if the peer closes the connection."""
    data = bytearray()
    while len(data) < size and (part := sock.recv(min(size - len(data), 1 << 16))):
        data += part
    return bytes(data)


def _clean(text: str) -> str:
    """What a peer says, as one short piece of printable text."""
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= 2 * _SHOWN else printable[: 2 * _SHOWN] + "..."
