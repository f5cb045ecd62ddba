"""The page of one process, its data and its metrics, for a browser on the same host.

It answers GET for three paths and nothing else. It listens on the loopback address unless a person names another.
There is no password, so what it shows must be harmless: names, steps, times and counts (`Status`). A page of the web
cannot read it through a name that it points here (DNS rebinding): the Host header must be this host's own.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from protocols.net.rendezvous import listen
from secure_sccvfl.runs.status.snapshot import Status, exposition

LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_MOST_AT_ONCE = 16
_SECONDS = 5.0


class StatusServer:
    """Serves a status in its own threads, from `start` to `close`."""

    def __init__(self, status: Status, port: int, host: str = LOOPBACK) -> None:
        self.host, self.address = host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.page = (files(__package__) / "page.html").read_text(encoding="utf-8").encode()
        self.headers = {
            "Content-Security-Policy": _policy(self.page.decode()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        self.status = status
        self._server = _Server(self, listen(self.address))
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: StatusServer, listener: Any) -> None:
        super().__init__((owner.host, 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.owner = listener, owner
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS
    server_version, sys_version = "sccvfl", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        owner = self.server.owner
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
