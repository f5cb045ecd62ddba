"""How the processes of a session find and check each other: the one module that opens sockets.

The process at place i dials all lower places, and all higher ones dial it (the dealer has the highest, so it needs
no open port). After the TLS handshake both sides send a fixed-size hello: their place, the digest of the
configuration and of the code. The place must be the one in the peer's certificate, and the digests must be equal. A
caller without a certificate of our authority is turned away, and waiting goes on. A member of the session who
contradicts itself stops the session.

A session file may pin the certificate of every place. Then no other one is accepted, even if the authority signed it:
a process that dials stops and says so, and a caller is turned away like any stranger.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import queue
import socket
import ssl
import struct
import threading
import time

from protocols.config import ConfigError, SessionConfig, code_digest, node_folder, split_address
from protocols.errors import ConfigurationMismatch, PeerError, ProtocolError, reason_for_peers
from protocols.net.certificates import Credentials, certified_node
from protocols.net.enrolment import SHOWN
from protocols.net.link import Link, why
from protocols.net.signatures import fingerprint

log = logging.getLogger(__name__)

_HELLO = struct.Struct(">8sHH32s32s")
_MAGIC = b"sccvfl01"
_MAX_PENDING_CALLERS = 32
_LOOK_SECONDS = 0.2
_STRANGER_SECONDS = 3.0  # how long a caller may take to show who it is


def listen(address: str) -> socket.socket:
    """A listening socket at host:port."""
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
    """A listening socket on a free local port, and its address."""
    server = socket.create_server(("127.0.0.1", 0), backlog=_MAX_PENDING_CALLERS)
    return server, f"127.0.0.1:{server.getsockname()[1]}"


def dial(address: str, seconds: float) -> socket.socket:
    """A connection to host:port, or OSError."""
    return socket.create_connection(split_address(address), timeout=seconds)


class Rendezvous:
    """Dialling and being dialled, each connection in its own short-lived thread."""

    def __init__(
        self, config: SessionConfig, node: int, credentials: Credentials, listener: socket.socket | None
    ) -> None:
        self.config, self.node = config, node
        self.hello = _HELLO.pack(_MAGIC, node, len(config.parties), config.digest(), code_digest())
        self.client = credentials.context(server=False)
        self.server = credentials.context(server=True)
        if other := self._unpinned(fingerprint(credentials.certificate.read_bytes()), node):
            raise ConfigError(f"{credentials.certificate}: {other}; pin the new one, or bring the old one back")
        self.callers = set(range(node + 1, config.dealer + 1))
        self.listener = listener
        if self.callers and listener is None:
            self.listener = listen(config.parties[node])
        self.end = time.monotonic() + config.connect
        self.stop = threading.Event()
        self.found: queue.Queue[tuple[int, ssl.SSLSocket] | Exception] = queue.Queue()
        self.refused: list[str] = []
        self.pending = threading.BoundedSemaphore(_MAX_PENDING_CALLERS)

    def run(self) -> dict[int, Link]:
        links: dict[int, Link] = {}
        for peer in range(self.node):
            threading.Thread(target=self._dial, args=(peer,), daemon=True).start()
        if self.callers:
            threading.Thread(target=self._accept, daemon=True).start()
        try:
            while len(links) < self.config.dealer:
                try:
                    came = self.found.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    if time.monotonic() > self.end:
                        raise self._missing(links) from None
                    for link in links.values():
                        link.read("connect")  # a peer that has given up says so
                    continue
                if isinstance(came, Exception):
                    raise came
                peer, sock = came
                if peer in links:
                    raise PeerError(self.config.node_name(peer), "connect", "connected twice")
                links[peer] = Link(sock, peer, self.config.node_name(peer), self.config.frame_limit)
        except BaseException as error:
            self.stop.set()
            for link in links.values():
                link.abort(reason_for_peers(error))
            while not self.found.empty():
                if isinstance(late := self.found.get(), tuple):
                    late[1].close()
            raise
        finally:
            self.stop.set()
            if self.listener is not None:
                self.listener.close()
        return links

    def _missing(self, links: dict[int, Link]) -> PeerError:
        absent = [self.config.node_name(peer) for peer in range(self.config.dealer + 1)]
        names = [name for peer, name in enumerate(absent) if peer != self.node and peer not in links]
        turned_away = f"; turned away: {self.refused[-1]}" if self.refused else ""
        return PeerError(
            ", ".join(names), "connect", f"did not connect within {self.config.connect:.0f} s{turned_away}"
        )

    def _left(self) -> float:
        return max(0.01, self.end - time.monotonic())

    def _dial(self, peer: int) -> None:
        name, address = self.config.node_name(peer), self.config.parties[peer]
        while not self.stop.is_set() and time.monotonic() < self.end:
            try:
                raw = dial(address, self._left())
            except OSError:
                self.stop.wait(0.05)
                continue
            try:
                sock = self._secure(raw, self.client, self._left(), server=False)
            except (ConnectionError, ssl.SSLEOFError):
                raw.close()  # the peer is too busy or just starting: try again
                self.stop.wait(0.05)
                continue
            except (OSError, ValueError) as error:
                raw.close()
                self.found.put(PeerError(name, "connect", f"TLS handshake failed: {why(error)}"))
                return
            try:
                self._check(sock, peer, name)
                self._give(peer, sock)
            except PeerError as error:
                sock.close()
                self.found.put(error)
            except (OSError, ValueError) as error:
                sock.close()
                self.found.put(PeerError(name, "connect", f"refused the connection ({why(error)})"))
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
            threading.Thread(target=self._answer, args=(raw, f"{address[0]}:{address[1]}"), daemon=True).start()

    def _answer(self, raw: socket.socket, caller: str) -> None:
        try:
            try:
                sock = self._secure(raw, self.server, min(self._left(), _STRANGER_SECONDS), server=True)
            except (OSError, ValueError) as error:
                raw.close()
                self._refuse(f"{caller} ({why(error)})")
                return
            node = certified_node(sock.getpeercert() or {}, self.config.dealer)
            if node not in self.callers:
                sock.close()
                self._refuse(f"{caller} (its certificate names no place that should call here)")
                return
            if other := self._unpinned(_shown(sock), node):
                sock.close()
                self._refuse(f"{caller}, which says it is {self.config.node_name(node)} ({other})")
                return
            try:
                self._check(sock, node, self.config.node_name(node))
                self._give(node, sock)
            except PeerError as error:
                sock.close()
                self.found.put(error)
            except (OSError, ValueError) as error:
                sock.close()
                self._refuse(f"{self.config.node_name(node)} ({why(error)})")
        finally:
            self.pending.release()

    def _give(self, peer: int, sock: ssl.SSLSocket) -> None:
        if self.stop.is_set():
            sock.close()
        else:
            self.found.put((peer, sock))

    def _refuse(self, who: str) -> None:
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
        """Why a certificate is not the one that the session file pins for a place; empty if it is, or none is."""
        place = node_folder(node, self.config.dealer)
        pin = self.config.certificates.get(place, shown)
        if shown == pin:
            return ""
        return f"its certificate {shown[:SHOWN]} is not the one that the session file pins for {place}, {pin[:SHOWN]}"

    def _check(self, sock: ssl.SSLSocket, expected: int, name: str) -> None:
        """Exchange hellos; the certificate, the claim and the digests must all agree."""
        certified = certified_node(sock.getpeercert() or {}, self.config.dealer)
        if certified != expected:
            shown = "no place of this session" if certified is None else self.config.node_name(certified)
            raise PeerError(name, "connect", f"its certificate is for {shown}")
        if other := self._unpinned(_shown(sock), expected):
            raise PeerError(name, "connect", other)
        sock.sendall(self.hello)
        came = b""
        while len(came) < _HELLO.size:
            part = sock.recv(_HELLO.size - len(came))
            if not part:
                raise PeerError(name, "connect", "closed the connection during the handshake")
            came += part
        magic, node, parties, configuration, code = _HELLO.unpack(came)
        if magic != _MAGIC:
            raise PeerError(name, "connect", "does not speak this protocol")
        if node != expected:
            claimed = self.config.node_name(node) if node <= self.config.dealer else f"place {node}"
            raise PeerError(name, "connect", f"its certificate is for {name}, but its handshake says {claimed}")
        if parties != len(self.config.parties) or configuration != self.config.digest():
            raise ConfigurationMismatch(name, "connect", "has another configuration")
        if code != code_digest():
            raise ConfigurationMismatch(name, "connect", "runs another version of the code")


def _shown(sock: ssl.SSLSocket) -> str:
    """The fingerprint of the certificate that a peer has shown."""
    return hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()
