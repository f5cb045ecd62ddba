"""A session file pins certificates, so even the authority that signed them cannot put itself in the middle."""

from __future__ import annotations

import functools
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder, split_address
from secure_sccvfl.protocols.errors import PeerError
from secure_sccvfl.protocols.net.certificates import (
    AUTHORITY_KEY,
    Authority,
    Credentials,
    certify,
    install,
    make_request,
    members,
    pem,
    read_key,
    write_key,
)
from secure_sccvfl.protocols.session.node import connect
from tests.support.sessions import LONG, in_threads, local_config

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
PARTIES = 2
NODES = [node_folder(node, PARTIES) for node in range(PARTIES + 1)]


class Consortium:
    """Members with certificates of one authority, and what that authority makes for itself: all members."""

    def __init__(self, folder: Path) -> None:
        authority = Authority.create(folder / "authority")
        requests = [make_request(folder / "members", name, name)[0] for name in NODES]
        for _, issued in authority.sign(requests):
            install(issued, authority.folder / "ca.pem", folder / "members")
        self.prints = {member.node: member.fingerprint for member in members(folder / "members")}
        key = read_key(authority.folder / AUTHORITY_KEY)
        for name in NODES:
            member_folder = folder / "forged" / name
            member_folder.mkdir(parents=True)
            stolen = ec.generate_private_key(ec.SECP256R1())
            write_key(member_folder / "key.pem", stolen)
            forged = certify(authority.certificate, key, stolen.public_key(), name, name, 1)
            (member_folder / "cert.pem").write_bytes(pem(forged))
        (folder / "forged" / "ca.pem").write_bytes(pem(authority.certificate))
        self.forged_prints = {member.node: member.fingerprint for member in members(folder / "forged")}
        self.folder = folder

    def member(self, node: int) -> Credentials:
        return Credentials.of(self.folder / "members", NODES[node])

    def forged(self, node: int) -> Credentials:
        return Credentials.of(self.folder / "forged", NODES[node])


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return Consortium(tmp_path_factory.mktemp("consortium"))


def meet(config: SessionConfig, listeners: list[socket.socket], credentials: list[Credentials]) -> list[bool]:
    def run(node: int) -> bool:
        connect(config, node, credentials[node], listeners[node] if node < PARTIES else None).finish()
        return True

    return in_threads([functools.partial(run, node) for node in range(PARTIES + 1)])


def test_without_pins_the_authority_can_be_any_member(consortium: Consortium) -> None:
    """The control: what it makes for itself passes every other check."""
    config, listeners = local_config(PARTIES)
    assert meet(config, listeners, [consortium.member(0), consortium.forged(1), consortium.member(2)]) == [True] * 3


def test_an_own_certificate_that_is_not_pinned_is_an_error_at_start(consortium: Consortium) -> None:
    config, listeners = local_config(PARTIES, certificates=consortium.prints)
    pins, forged = consortium.prints["party-1"], consortium.forged_prints["party-1"]
    with pytest.raises(
        ConfigError, match=rf"{forged[:8]} is not the one .* pins for party-1, {pins[:8]}; pin the new"
    ):
        connect(config, 1, consortium.forged(1), listeners[1])
    for listener in listeners:
        listener.close()


def test_a_caller_that_the_authority_made_is_rejected_and_the_session_continues(
    consortium: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    config, listeners = local_config(PARTIES, certificates=consortium.prints)
    turned_away = threading.Event()

    def middle() -> bytes:
        """The authority as party 1, towards party 0. It is sent nothing at all."""
        try:
            raw = socket.create_connection(split_address(config.parties[0]), timeout=LONG)
            with consortium.forged(1).context(server=False).wrap_socket(raw) as sock:
                sock.settimeout(LONG)
                return sock.recv(100)
        except ConnectionError:
            return b""
        finally:
            turned_away.set()

    def member(node: int) -> bytes:
        if node > 0:
            assert turned_away.wait(LONG)
        connect(config, node, consortium.member(node), listeners[node] if node < PARTIES else None).finish()
        return b""

    works = [functools.partial(member, node) for node in range(3)]
    assert in_threads([*works, middle]) == [b""] * 4
    pins, forged = consortium.prints["party-1"], consortium.forged_prints["party-1"]
    (message,) = [record.getMessage() for record in caplog.records if "turned away" in record.getMessage()]
    assert "says it is party 1" in message and forged[:8] in message and pins[:8] in message and "party-1" in message


@pytest.fixture
def impostor(consortium: Consortium) -> Iterator[str]:
    """The authority, listening as party 0; it sees no hello."""
    server = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def answer() -> None:
        raw, _ = server.accept()
        try:
            with consortium.forged(0).context(server=True).wrap_socket(raw, server_side=True) as sock:
                sock.settimeout(LONG)
                heard.append(sock.recv(100))
        except (ssl.SSLError, OSError):
            raw.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    thread.join(LONG)
    server.close()
    assert not any(heard), "it received something"


def test_who_dials_the_authority_instead_of_a_member_stops_and_says_so(consortium: Consortium, impostor: str) -> None:
    config, listeners = local_config(PARTIES, certificates=consortium.prints)
    misled = replace(config, parties=(impostor, config.parties[1]))
    pins, forged = consortium.prints["party-0"], consortium.forged_prints["party-0"]
    pattern = (
        rf"party 0: its certificate {forged[:8]} is not the one .* pins for party-0, {pins[:8]} \(step: connect\)"
    )
    with pytest.raises(PeerError, match=pattern):
        connect(misled, 1, consortium.member(1), listeners[1])
    listeners[0].close()


def test_pins_need_a_transport_that_shows_certificates(consortium: Consortium) -> None:
    with pytest.raises(ConfigError, match="use tls"):
        SessionConfig(("a:1", "b:1"), transport="gloo", certificates=consortium.prints)
