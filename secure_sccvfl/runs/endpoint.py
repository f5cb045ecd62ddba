"""Single decisions while a session stays open: a local HTTP endpoint at the receiver, and the turns of all parties.

The receiver's software sends the id of one person and gets the answer as JSON:

    POST /decision  {"id": "p17"}    200 {"answer": {...}}, or 404, 409, 429 with {"refused": "why"}
    POST /stop                       ends the session at all parties

The endpoint listens on the loopback address alone, and every request needs `Authorization: Bearer TOKEN`. Address and
token are in `endpoint.json` in the folder of the session, which its owner alone can read. Requests are answered one
after the other.

A turn, run by all parties together: the receiver sends one byte and a pseudonym of 16 bytes to all, and the others as
many zeros. ASKED: this person is decided now. IDLE: nobody asked for some seconds, so all know that the others are
there. AWAKE: the dealer would stop waiting soon, and a comparison of zeros keeps it. STOP: the session ends. What a
turn reveals: the other parties learn of whom the receiver asks, and when; a party that holds no record of the person
learns a keyed pseudonym, against which it can test ids, since all parties have the key of records. What the receiver
can answer from its own log is no turn, so nobody sees that it was asked again.
"""

from __future__ import annotations

import hmac
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.rendezvous import listen, listen_anywhere
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.status import LOOPBACK, LocalServer

ENDPOINT = "endpoint.json"
IDLE, ASKED, AWAKE, STOP = range(4)
NAME_BYTES = 16
BEAT = 5.0
"""Seconds without a request after which the parties hear of the receiver nevertheless."""
_LONGEST = 1 << 12


@dataclass(frozen=True)
class Reply:
    """A status of HTTP and what is sent as JSON."""

    status: int
    content: dict[str, Any]

    @classmethod
    def refused(cls, status: int, why: str) -> Reply:
        return cls(status, {"refused": why})


@dataclass(frozen=True)
class Request:
    """A person that is asked for; None to stop. The reply is put once."""

    person: str | None
    reply: queue.Queue[Reply] = field(default_factory=lambda: queue.Queue(1))


class Endpoint:
    """The HTTP server of a session, in threads of its own, until `close`."""

    host = LOOPBACK

    def __init__(self, folder: Path, port: int) -> None:
        """port: 0 for any that is free."""
        self.token, self.requests = fresh_key().hex(), queue.Queue[Request]()
        self._ended, self._lock = "", threading.Lock()
        listener, address = listen_anywhere() if not port else (listen(f"{LOOPBACK}:{port}"), f"{LOOPBACK}:{port}")
        self._server = LocalServer(self, listener, _Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
        with open(folder / ENDPOINT, "w", encoding="utf-8", opener=private) as file:
            json.dump({"url": f"http://{address}", "token": self.token}, file)
        self._file = folder / ENDPOINT

    def ask(self, person: str | None) -> Reply:
        """Run by a thread of the server: waits until the session has an answer, or has ended."""
        request = Request(person)
        with self._lock:
            if self._ended:
                return Reply.refused(503, self._ended)
            self.requests.put(request)
        return request.reply.get()

    def close(self, why: str) -> None:
        """Nobody waits for longer: whoever has no answer yet gets this reason."""
        with self._lock:
            self._ended = why
            while not self.requests.empty():
                self.requests.get_nowait().reply.put(Reply.refused(503, why))
        self._file.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    timeout = 5.0
    server_version, sys_version = "sccvfl", ""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        given = self.rfile.read(int(length)) if length.isdecimal() and int(length) <= _LONGEST else b""
        self.server.heard(self.connection)
        reply = self._reply(self.server.owner, given)
        body = json.dumps(reply.content).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reply(self, endpoint: Endpoint, content: bytes) -> Reply:
        token = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(token, f"Bearer {endpoint.token}".encode()):
            return Reply.refused(401, f"a request needs the token in {ENDPOINT}")
        if self.path == "/stop":
            return endpoint.ask(None)
        if self.path != "/decision":
            return Reply.refused(404, "there is /decision, and /stop")
        try:
            person = json.loads(content)["id"]
            person.encode()  # half a surrogate pair is no text
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            person = None
        if not isinstance(person, str) or not person:
            return Reply.refused(400, 'a request is JSON like {"id": "p17"}')
        return endpoint.ask(person)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged here: the log of predictions has who was answered."""


def turns(
    session: Session,
    receiver: int,
    endpoint: Endpoint | None,
    local: Callable[[str], Reply | str],
    decide: Callable[[str], Reply | None],
    *,
    deadline: float,
    idle: float,
) -> int:
    """Run by all parties together until the receiver is told to stop; returns how many people were decided.

    endpoint: at the receiver. local: there, the reply that needs no other party, or the pseudonym of the person.
    decide: run by all; the reply at the receiver, when it is on record. deadline, idle: of the session.
    """
    count, awake, why = 0, time.monotonic(), "the session ended before there was an answer"
    waiting: Request | None = None
    try:
        while True:
            kind, name = IDLE, bytes(NAME_BYTES)
            if endpoint is not None:
                waiting, kind, name = _next(endpoint, local, min(BEAT, deadline / 4))
                if kind == IDLE and time.monotonic() - awake > idle / 4:
                    kind = AWAKE
            message = session.swap_bytes("next request", bytes([kind]) + name)[receiver]
            kind, reply = message[0], Reply(200, {"decided": count})
            if kind == STOP:
                why = "the session has ended"
            elif kind == ASKED:
                reply, count, awake = decide(message[1:].hex()) or reply, count + 1, time.monotonic()
            elif kind == AWAKE:
                session.public(np.zeros(1)).lt(0)
                awake = time.monotonic()
            if waiting is not None:
                waiting.reply.put(reply)
                waiting = None
            if kind == STOP:
                return count
    except ProtocolError as error:
        why = f"the session ended: {error}"
        raise
    finally:
        if waiting is not None:
            waiting.reply.put(Reply.refused(503, why))
        if endpoint is not None:
            endpoint.close(why)


def _next(
    endpoint: Endpoint, local: Callable[[str], Reply | str], seconds: float
) -> tuple[Request | None, int, bytes]:
    """The next request that all parties have to see; others are answered here. IDLE after some seconds, however many.

    The other parties wait meanwhile, and not for ever.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            request = endpoint.requests.get(timeout=left)
        except queue.Empty:
            break
        if request.person is None:
            return request, STOP, bytes(NAME_BYTES)
        try:
            found = local(request.person)
        except BaseException:
            request.reply.put(Reply.refused(503, "the session ended before there was an answer"))
            raise
        if isinstance(found, str):
            return request, ASKED, bytes.fromhex(found)
        request.reply.put(found)
    return None, IDLE, bytes(NAME_BYTES)
