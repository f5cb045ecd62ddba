"""What people see while a party or the dealer runs: a page, its data as JSON, and metrics for Prometheus.

A status holds names, steps, times and counts, and never a value of the computation. An error about a party's own data
is shown by its kind alone, as its peers hear it: the details are in its log, on its own host. The thread of the
session writes and others read, so everything goes through a lock.

The server answers GET for three paths and nothing else. It listens on the loopback address unless a person names
another. There is no password. A web page cannot read it through a name that resolves to this host (DNS rebinding):
the Host header must be this host's own.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import reason_for_peers
from secure_sccvfl.protocols.net.link import Activity
from secure_sccvfl.protocols.net.rendezvous import listen

_WINDOW, _SPACING = 15.0, 0.5
_PROBLEMS, _LONGEST = 5, 300


class Status:
    """The state of one process, from its start to its end."""

    def __init__(self, process: str) -> None:
        self.activity = Activity()
        self._facts: dict[str, Any] = {"place": process, "session": "", "job": "", "jobs": [], "phase": "starting"}
        self._step: dict[str, Any] | None = None
        self._problems: deque[str] = deque(maxlen=_PROBLEMS)
        self._samples: deque[tuple[float, int, int]] = deque()
        self._began = self._step_began = time.monotonic()
        self._lock = threading.Lock()

    def describe(self, process: str, session: str, job: str, jobs: Sequence[str] = ()) -> None:
        """A job begins: who takes part in what. `jobs`: all that this process runs, one after the other."""
        with self._lock:
            self._facts |= {"place": process, "session": session, "job": job, "jobs": list(jobs)}
            self._step = None

    def phase(self, name: str) -> None:
        with self._lock:
            self._facts["phase"] = name

    def begins(self, step: str, number: int, total: int) -> None:
        with self._lock:
            self._step, self._step_began = {"name": plain(step), "number": number, "total": total}, time.monotonic()

    def problem(self, text: str) -> None:
        """Something that people should see; the last few are kept."""
        with self._lock:
            self._problems.append(plain(text)[:_LONGEST])

    def stops(self, error: BaseException) -> None:
        self.problem(f"stops: {reason_for_peers(error)}")
        self.phase("stopping")

    def snapshot(self) -> dict[str, Any]:
        """Everything that is shown, as JSON data."""
        now, cost, left = time.monotonic(), self.activity.cost, self.activity.connect_left
        with self._lock:
            connecting = left is not None and self._facts["phase"] != "stopping"
            rounds, sent = self._rates(now, cost.rounds, cost.sent + cost.dealer)
            step = None if self._step is None else {**self._step, "seconds": now - self._step_began}
            return {
                **self._facts,
                **({"phase": "connecting"} if connecting else {}),
                "connect_left": left,
                "seconds": now - self._began,
                "step": step,
                "rounds": cost.rounds,
                "rounds_per_second": rounds,
                "bytes_sent": cost.sent,
                "bytes_received": cost.received,
                "bytes_dealer": cost.dealer,
                "bytes_per_second": sent,
                "peers": [asdict(peer) for peer in self.activity.peers()],
                "budget": dict(self.activity.facts),
                "memory": memory(),
                "problems": list(self._problems),
            }

    def _rates(self, now: float, rounds: int, sent: int) -> tuple[float, float]:
        if not self._samples or now - self._samples[-1][0] >= _SPACING:
            self._samples.append((now, rounds, sent))
        while len(self._samples) > 1 and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        then, rounds_then, sent_then = self._samples[0]
        span = now - then
        return ((rounds - rounds_then) / span, (sent - sent_then) / span) if span > 0 else (0.0, 0.0)


def memory() -> dict[str, int]:
    """Bytes of memory of this process, now and at most; empty where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    facts = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    names = {"now": "VmRSS", "most": "VmHWM"}
    return {name: 1024 * int(facts[key]) for name, key in names.items() if key in facts}


def exposition(snapshot: dict[str, Any]) -> str:
    """A snapshot in the text format 0.0.4 of Prometheus."""
    lines: list[str] = []
    for name, labels, value in _metrics(snapshot):
        kind = "counter" if name.endswith("_total") else "gauge"
        if f"# TYPE {name} {kind}" not in lines:
            lines.append(f"# TYPE {name} {kind}")
        shown = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
        lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _metrics(snapshot: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each metric; samples of one metric follow each other."""
    yield "sccvfl_info", {key: snapshot[key] for key in ("place", "session", "job", "phase")}, 1
    yield "sccvfl_uptime_seconds", {}, snapshot["seconds"]
    yield "sccvfl_rounds_total", {}, snapshot["rounds"]
    for kind in ("sent", "received", "dealer"):
        yield f"sccvfl_{kind}_bytes_total", {}, snapshot[f"bytes_{kind}"]
    if snapshot["step"] is not None:
        yield "sccvfl_step", {}, snapshot["step"]["number"] + 1
        yield "sccvfl_steps", {}, snapshot["step"]["total"]
    for key, suffix in (("connected", "connected"), ("awaited", "awaited"), ("silent", "silent_seconds")):
        for peer in snapshot["peers"]:
            if peer[key] is not None:
                value = peer[key] if key == "silent" else bool(peer[key])
                yield f"sccvfl_peer_{suffix}", {"peer": peer["name"]}, value
    for name, value in snapshot["budget"].items():
        yield f"sccvfl_budget_{name}", {}, value
    for name, value in snapshot["memory"].items():
        yield f"sccvfl_memory_{name}_bytes", {}, value
    yield "sccvfl_problems", {}, len(snapshot["problems"])


LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_MOST_AT_ONCE = 16
_SECONDS = 5.0


class StatusServer:
    """Serves a status in its own threads, from `start` to `close`."""

    def __init__(self, status: Status, port: int, host: str = LOOPBACK) -> None:
        self.host, self.address = host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.page = (files(__package__) / "status.html").read_text(encoding="utf-8").encode()
        self.headers = {
            "Content-Security-Policy": _policy(self.page.decode()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        self.status = status
        self._server = LocalServer(self, listen(self.address), _Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answers_to(self, host_header: str) -> bool:
        """Whether a Host header names this host: a local name, the address it listens on, or, on all, any address."""
        parts = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^\[\]:/@\s]+)(?::\d+)?", host_header)
        if parts is None:
            return False
        name = (parts[1] or parts[2]).lower()
        if name == self.host.lower() or (name in _LOCAL_NAMES and (self._everywhere or self.only_here)):
            return True
        return self._everywhere and _address(name) is not None

    @property
    def only_here(self) -> bool:
        """Whether nobody on another host can reach it."""
        address = _address(self.host)
        return self.host.lower() == "localhost" or (address is not None and address.is_loopback)

    @property
    def _everywhere(self) -> bool:
        address = _address(self.host)
        return address is not None and address.is_unspecified


class LocalServer(ThreadingHTTPServer):
    """Answers some requests at a time in threads, on a socket that listens; `owner` is what the handler asks.

    If all threads are taken, the connection that has been silent for longest makes room for the next.
    """

    daemon_threads = True

    def __init__(self, owner: Any, listener: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((owner.host, 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.owner = listener, owner
        self._room, self._lock = threading.BoundedSemaphore(_MOST_AT_ONCE), threading.Lock()
        self._silent = dict[Any, None]()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            with self._lock:
                if (oldest := next(iter(self._silent), None)) is not None:
                    del self._silent[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
            if oldest is None or not self._room.acquire(timeout=_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._silent[request] = None
        super().process_request(request, client_address)

    def heard(self, request: Any) -> None:
        """Called by a handler that has read a whole request: from now on its connection is not closed for others."""
        with self._lock:
            self._silent.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    timeout = _SECONDS
    server_version, sys_version = "sccvfl", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        owner = self.server.owner
        self.server.heard(self.connection)
        if not owner.answers_to(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this host is not called that")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._send("text/html; charset=utf-8", owner.page)
        elif path == "/status.json":
            self._send("application/json", json.dumps(owner.status.snapshot()).encode())
        elif path == "/metrics":
            self._send("text/plain; version=0.0.4; charset=utf-8", exposition(owner.status.snapshot()).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in self.server.owner.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a page that refreshes itself would fill the log."""


def _policy(page: str) -> str:
    """Only the style and the script of the page itself, and only its own data."""

    def digest(tag: str) -> str:
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        text = content[1] if content else ""
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest('style')}'; script-src 'sha256-{digest('script')}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


log = logging.getLogger(__name__)
_SHOWN = ("secure_sccvfl.protocols.net", "secure_sccvfl.runs.status")
"""Whose warnings are about links and the page. A party's own log may speak of its data."""


@dataclass(frozen=True)
class Watching:
    """`port`: of the status page, none if None. `host`: the address that it answers on."""

    port: int | None = None
    host: str = LOOPBACK

    def __post_init__(self) -> None:
        if self.port is not None and not 0 < self.port < 65_536:
            raise ConfigError(f"--status must be a port from 1 to 65535, not {self.port}")
        if self.port is None and self.host != LOOPBACK:
            raise ConfigError("--status-host needs --status PORT")

    @contextmanager
    def of(self, process: str) -> Iterator[Status]:
        """Show the status of `process` for as long as it runs; an error inside is shown as well."""
        status = Status(process)
        server = StatusServer(status, self.port, self.host) if self.port is not None else None
        if server is not None:
            log.info("status page: http://%s/", server.address)
            if not server.only_here:
                log.warning("the status page answers everybody who can reach %s, without a password", server.host)
        problems = _Problems(status)
        logging.getLogger().addHandler(problems)
        try:
            yield status
        except BaseException as error:
            status.stops(error)
            raise
        finally:
            logging.getLogger().removeHandler(problems)
            if server is not None:
                server.close()


class _Problems(logging.Handler):
    """Warnings about links are shown on the page. All others stay in the log: they may quote a cell or an id."""

    def __init__(self, status: Status) -> None:
        super().__init__(logging.WARNING)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_SHOWN):
            self._status.problem(record.getMessage())
