"""Members that cannot meet say why: which setting, library or clock differs, who is awaited, who takes no part."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from secure_sccvfl.protocols.config import CONNECT_BY_HAND, ConfigError, SessionConfig, code_parts
from secure_sccvfl.protocols.dealing.party import agree_on_keys
from secure_sccvfl.protocols.errors import PeerError, PeerStopped, ProtocolError, reason_for_peers
from secure_sccvfl.protocols.net import certificates, rendezvous
from secure_sccvfl.protocols.net.certificates import Credentials, check_own_clock
from secure_sccvfl.protocols.net.link import Activity
from secure_sccvfl.protocols.net.rendezvous import (
    MOST_BYTES,
    Rendezvous,
    exchange_settings,
    listen,
    mismatch,
    settings_by_key,
)
from secure_sccvfl.protocols.session.node import connect, refuse
from tests.support.sessions import credentials, in_threads, local_config

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
TWO = ("a.example:7000", "b.example:7000")


# Which setting differs.


def test_the_keys_that_differ_are_named_with_both_values() -> None:
    ours = SessionConfig(TWO, options={"seed": 0, "dataset": "loans.toml"})
    theirs = replace(ours, deadline=5.0, options={"seed": 1, "mode": "split"})
    text = str(mismatch("party 1", "has another configuration", settings_by_key(ours), settings_by_key(theirs)))
    assert "deadline is 5.0 there and 60.0 here" in text and "options.seed is 1 there and 0 here" in text
    assert text.count(" there and ") == 3 and "and 1 more" in text and text.endswith("(step: connect)")


def test_long_values_are_cut_and_differences_beyond_the_cut_are_seen() -> None:
    ours, theirs = (SessionConfig(TWO, options={"note": "x" * 5000 + end}) for end in "ab")
    assert settings_by_key(ours) != settings_by_key(theirs)
    text = str(mismatch("party 1", "differs", settings_by_key(ours), settings_by_key(theirs)))
    assert "options.note" in text and len(text) < 400


def test_what_a_peer_says_is_cut_and_printable() -> None:
    text = str(mismatch("party 1", "differs", {"job": "a"}, {"job": "b\x1b[2J\n" + "y" * 9000}))
    assert text.isprintable() and len(text) < 400


def test_other_code_is_named_by_package_or_version() -> None:
    parts = code_parts()
    other = {**parts, "sources of protocols": "0" * 64, "torch": "1.0"}
    text = str(mismatch("party 1", "runs another version of the code", parts, other))
    assert "other sources of protocols" in text and f"torch is 1.0 there and {parts['torch']} here" in text
    assert "0" * 64 not in text


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        struct.pack(">I", MOST_BYTES + 1),
        struct.pack(">I", 4) + b"[1] ",
        struct.pack(">I", 9) + b'{"a": [1]',
        struct.pack(">I", 9) + b'{"a": 12}',
    ],
    ids=["nothing", "too long", "list", "torn", "number"],
)
def test_a_list_that_cannot_be_read_is_none(sent: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(sent)
        there.shutdown(socket.SHUT_WR)
        assert exchange_settings(here, {"job": "train"}) is None
        assert json.loads(there.recv(1 << 16)[4:]) == {"job": "train"}


# Clocks.


def certificate(folder: Path, begins: datetime.timedelta, ends: datetime.timedelta) -> Credentials:
    """A certificate that signs itself, valid from and to these distances from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sccvfl party-0")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .sign(key, hashes.SHA256())
    )
    path = folder / "cert.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return Credentials(path, path, path)


@pytest.mark.parametrize(("begins", "ends"), [(1, 2), (-2, -1)], ids=["not yet", "no longer"])
def test_a_wrong_clock_is_reported_at_its_own_host_with_both_times(tmp_path: Path, begins: int, ends: int) -> None:
    day = datetime.timedelta(days=1)
    with pytest.raises(ConfigError, match=r"the clock of this host says .* UTC, but .* valid from .* UTC to .* UTC"):
        check_own_clock(certificate(tmp_path, begins * day, ends * day))
    check_own_clock(certificate(tmp_path, -day, day))


def test_a_process_with_a_wrong_clock_does_not_begin_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    config, listeners = local_config(2)
    late = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=40_000)
    monkeypatch.setattr(certificates, "_now", lambda: late)
    with pytest.raises(ConfigError, match="set the clock"):
        Rendezvous(config, 0, credentials(0, 2), listeners[0])
    for listener in listeners:
        listener.close()


# One that cannot take part, and those who wait.


def take_part(config: SessionConfig, listeners: list[Any], node: int) -> str:
    """What a process receives that wants to take part."""
    try:
        transport = connect(config, node, credentials(node, 2), listeners[node] if node < 2 else None)
        try:  # the last to connect receives it in the first step
            agree_on_keys(transport, config)
        except PeerError as stopped:  # and passes on what it received, as every process does
            transport.abort(reason_for_peers(stopped))
            raise
        transport.abort("over")
    except PeerError as stopped:
        return str(stopped)
    return "nothing"


@pytest.mark.parametrize("bad", [0, 1])
def test_a_process_that_cannot_take_part_informs_all_others_at_once(bad: int) -> None:
    config, listeners = local_config(2, names=("bank", "employer"))
    others = [node for node in range(3) if node != bad]
    reason = "its data, or other files that it was given, cannot be used (InputError)"
    telling = partial(refuse, config, bad, credentials(bad, 2), reason, listeners[bad])
    met, *heard = in_threads([telling, *(partial(take_part, config, listeners, node) for node in others)])
    assert sorted(met) == sorted(config.node_name(node) for node in others)
    assert all(f"{config.node_name(bad)}: stopped: {reason} (step: " in line for line in heard), heard


def test_two_that_cannot_take_part_do_not_wait_for_each_other() -> None:
    config, listeners = local_config(2)
    telling = [partial(refuse, config, n, credentials(n, 2), "no", listeners[n]) for n in range(2)]
    met = in_threads([*telling, partial(take_part, config, listeners, 2)])
    assert "dealer" in met[0] and "dealer" in met[1]


def test_one_that_comes_later_hears_that_two_others_differ(caplog: pytest.LogCaptureFixture) -> None:
    """Without it, it would wait for both until the time to connect is over, and not know why they are gone."""
    config, listeners = local_config(2, names=("bank", "employer"))
    other = replace(config, idle=config.idle + 1)

    def late() -> str:
        while sum("informs the others as they connect" in record.getMessage() for record in caplog.records) < 2:
            time.sleep(0.01)
        return take_part(config, listeners, 0)

    met = [partial(take_part, config, listeners, 1), partial(take_part, other, listeners, 2)]
    *_, heard = in_threads([*met, late])
    assert "another configuration: idle is " in heard, heard


def test_awaited_peers_are_reported_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "_SAY_SECONDS", 0.2)
    caplog.set_level(logging.INFO)
    config, listeners = local_config(2, names=("bank", "employer"), connect=1.5)
    activity = Activity()
    meeting = Rendezvous(config, 0, credentials(0, 2), listeners[0], activity)
    routes = r"\(party-1 did not reach 127\.0\.0\.1:\d+; dealer did not reach 127\.0\.0\.1:\d+\)"
    with pytest.raises(Exception, match=r"party 1 \(employer\), dealer: did not connect within 2 s " + routes):
        meeting.run()
    listeners[1].close()
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("waiting for party 1 (employer), dealer, ") and "s left" in line for line in said)
    assert [(p.name, p.connected, p.silent) for p in activity.peers()] == [
        ("party 1 (employer)", False, None),
        ("dealer", False, None),
    ]


def test_a_file_with_pinned_certificates_gives_people_ten_minutes(tmp_path: Path) -> None:
    prints = dict.fromkeys(("party-0", "party-1", "dealer"), "0" * 64)
    path = tmp_path / "session.toml"
    text = f"parties = {json.dumps(TWO)}\n[certificates]\n" + "".join(f'{k} = "{v}"\n' for k, v in prints.items())
    path.write_text(text)
    assert SessionConfig.load(path).connect == CONNECT_BY_HAND == 600
    path.write_text("connect = 30\n" + text)
    assert SessionConfig.load(path).connect == 30
    path.write_text(f"parties = {json.dumps(TWO)}\n")
    assert SessionConfig.load(path).connect == 60


# Being dialled goes on after an error that passes, and ends when all have met.


def wait_until(reached: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)


class Strained:
    """A listening socket of a host that at first has no handles left, or whose callers are gone again."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner, self.errors = inner, [errno.EMFILE, errno.ECONNABORTED, errno.ENOBUFS]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def accept(self) -> Any:
        if self.errors:
            raise OSError(self.errors.pop(), "passing")
        return self._inner.accept()


def test_a_passing_error_of_accept_does_not_end_the_waiting() -> None:
    config, listeners = local_config(2, connect=20.0)
    strained = Strained(listeners[0])

    def node(rank: int) -> bool:
        listener: Any = strained if rank == 0 else listeners[1] if rank == 1 else None
        transport = connect(config, rank, credentials(rank, 2), listener)
        transport.finish()
        return True

    assert in_threads([partial(node, rank) for rank in range(3)]) == [True] * 3
    assert not strained.errors


def test_an_address_is_free_as_soon_as_all_have_met() -> None:
    """Sessions follow each other, and a thread may still wait for callers of the last one."""
    config, listeners = local_config(2, connect=20.0)

    def node(rank: int) -> bool:
        transport = connect(config, rank, credentials(rank, 2), listeners[rank] if rank < 2 else None)
        free = rank > 0
        if rank == 0:
            with contextlib.suppress(ProtocolError):
                listen(config.parties[0]).close()
                free = True
        transport.finish()
        return free

    assert in_threads([partial(node, rank) for rank in range(3)]) == [True] * 3


@pytest.mark.parametrize("under_way", [False, True], ids=["connected", "handshake under way"])
def test_a_process_that_gives_up_informs_peers_that_still_wait(
    under_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its peers report a closed connection instead of the party that caused the stop."""
    config, listeners = local_config(2, connect=20.0)
    dealer = Rendezvous(config, config.dealer, credentials(config.dealer, 2), None)
    checked, reached = Rendezvous._check, threading.Event()

    def check(self: Rendezvous, sock: Any, expected: int, name: str) -> None:
        if self is dealer and under_way:
            reached.set()
            self.stop.wait(20.0)
        checked(self, sock, expected, name)

    monkeypatch.setattr(Rendezvous, "_check", check)

    def give_up() -> str:
        dealer._begin()
        try:
            if under_way:
                assert reached.wait(20.0)
            else:
                wait_until(lambda: not dealer.found.empty())
            dealer._give_up("party 1: stopped: its data")
        finally:
            dealer._end()
        return ""

    def wait_for_all() -> str:
        with pytest.raises(PeerStopped) as caught:
            connect(config, 0, credentials(0, 2), listeners[0])
        return str(caught.value)

    listeners[1].close()
    assert "party 1: stopped: its data" in in_threads([give_up, wait_for_all])[1]


def test_a_blocked_route_is_named_with_its_address_and_reason() -> None:
    config, listeners = local_config(2, connect=0.5)
    for listener in listeners:
        listener.close()
    dealer = Rendezvous(config, config.dealer, credentials(config.dealer, 2), None)
    with pytest.raises(Exception, match=rf"dialled {config.parties[1]}: Connection refused"):
        dealer.run()
