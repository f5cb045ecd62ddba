"""Faults between hosts: every one stops all in the end, and names the culprit, as docs/operating.md says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import DEALER
from secure_sccvfl.protocols.net.certificates import make_certificates
from tests.multiprocess.hosts import PLACES, Hosts
from tests.support.own_data import heart_rows, write_own
from tests.support.sessions import CONNECT

PATIENCE = 15.0
"""How long processes wait for one that is silent, in tests that must see them give up."""
MEETING = 60.0
"""So too for one that does not come; all others must have started by then."""


def closing(hosts: Hosts) -> Iterator[Hosts]:
    yield hosts
    hosts.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    yield from closing(Hosts(tmp_path))


def named(party: int) -> str:
    return f"party {party} ({('bank', 'employer', 'bureau')[party]})"


def assert_stopped(endings: dict[str, tuple[int, str]], *culprits: str) -> None:
    """All ended by themselves with a line of their own, and at least one of them names the culprit first."""
    for name, (code, line) in endings.items():
        assert code in (1, 2), (name, code, line)
        assert line.startswith(f"{name}: "), line
    assert any(line.startswith(f"{name}: {who}: ") for name, (_, line) in endings.items() for who in culprits), (
        endings
    )


def test_when_one_partys_data_are_bad_the_others_are_informed_at_once(tmp_path: Path) -> None:
    """They hear of the party and the kind of error long before the time to connect is over; of the cell, nothing."""
    rows = heart_rows()
    write_own(tmp_path / "good", rows)
    write_own(
        tmp_path / "bad", [{**row, "age": "forty-4211" if k == 7 else row["age"]} for k, row in enumerate(rows)]
    )
    hosts = Hosts(tmp_path / "hosts", "train", {"dataset": "own.toml"}, connect=600.0)
    try:
        for rank, party in enumerate(("hospital", "clinic", "payer")):
            kept = tmp_path / ("bad" if party == "clinic" else "good")
            shutil.copy(kept / f"{party}.csv", hosts.home(f"party {rank}"))
            shutil.copy(kept / "own.toml", hosts.home(f"party {rank}"))
        hosts.start(*PLACES)
        endings = hosts.endings()
    finally:
        hosts.close()
    code, line = endings.pop("party 1")
    assert code == 2 and "age" in line
    assert "cannot take part: " in hosts.log("party 1")
    for name, (code, line) in endings.items():
        assert code == 1 and f"{named(1)}: stopped: its data, or other files" in line, (name, line)
        assert "4211" not in hosts.log(name) and "age" not in line
        assert "did not connect" not in line


# The rest take minutes: `make test-slow`.


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["party 0", "party 2", DEALER])
@pytest.mark.parametrize("phase", ["before", "connecting", "running"])
def test_a_host_that_is_killed(tmp_path: Path, victim: str, phase: str) -> None:
    hosts = Hosts(tmp_path, connect=MEETING if phase == "before" else CONNECT)
    try:
        others = [name for name in PLACES if name != victim]
        if phase == "before":
            hosts.start(*others)
        elif phase == "connecting":
            last = next(name for name in others if name != DEALER)
            hosts.start(*(name for name in PLACES if name != last))
            hosts.wait_for(victim, "waiting for")
            hosts.kill(victim)
            hosts.start(last)
        else:
            hosts.start(*PLACES)
            hosts.wait_for("party 1", "(5 of ")
            hosts.kill(victim)
        endings = hosts.endings()
    finally:
        hosts.close()
    who = victim if victim == DEALER else named(int(victim.split()[1]))
    for name, (code, line) in endings.items():
        assert code == 1 and line.startswith(f"{name}: "), (name, code, line)
        assert who in line, (name, line)
    if phase == "running":
        assert any(f"{who}: closed the connection" in line for _, line in endings.values()), endings
    assert not list(tmp_path.glob("party-*/out/result.json"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cut", "silent", "inward", "outward"])
def test_the_network_of_a_host_fails(tmp_path: Path, way: str) -> None:
    """Party 0's links are closed, carry nothing any more, or carry bytes in one direction only."""
    hosts = Hosts(tmp_path, deadline=PATIENCE, relayed=True)
    try:
        hosts.start(*PLACES)
        hosts.wait_for("party 1", "(5 of ")
        relay = hosts.relays[0]
        if way == "cut":
            relay.close()
        if way in ("silent", "inward"):
            relay.stop_inward.set()
        if way in ("silent", "outward"):
            relay.stop_outward.set()
        endings = hosts.endings()
    finally:
        hosts.close()
    reason = "closed the connection" if way == "cut" else "did not answer within"
    assert all(code == 1 for code, _ in endings.values()), endings
    lines = [line for _, line in endings.values()]
    assert any(reason in line for line in lines), lines
    assert any(named(0) in line for name, (_, line) in endings.items() if name != "party 0"), lines
    assert not list(tmp_path.glob("party-*/out/result.json"))


@pytest.mark.slow
def test_a_late_start_is_waited_for_and_said(tmp_path: Path) -> None:
    """Two minutes late, with ten minutes to connect: the session runs; meanwhile people see who is awaited."""
    hosts = Hosts(tmp_path, options={"size": 20, "repeat": 1}, connect=600.0)
    try:
        hosts.start("party 0", "party 1", DEALER)
        hosts.wait_for("party 0", f"waiting for {named(2)}, 48")  # of 600 s, so two minutes have passed
        hosts.start("party 2")
        endings = hosts.endings()
    finally:
        hosts.close()
    assert {name: code for name, (code, _) in endings.items()} == dict.fromkeys(PLACES, 0), endings


@pytest.mark.slow
def test_a_start_that_is_too_late_is_explained(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, connect=MEETING)
    try:
        hosts.start("party 0", "party 1", DEALER)
        endings = hosts.endings()
        for _, line in endings.values():
            assert f"{named(2)}: did not connect within {MEETING:.0f} s" in line, line
        hosts.start("party 2")
        late = hosts.endings()["party 2"]
    finally:
        hosts.close()
    assert late[0] == 1 and f"{named(0)}, {named(1)}, dealer: did not connect within" in late[1], late


@pytest.mark.slow
def test_a_full_disk_is_named_with_its_file(hosts: Hosts) -> None:
    """The system lets no file of party 1 grow beyond 2 kB, as a full disk does."""
    # The log must be able to grow, so it goes through a pipe to a process without the limit.
    limited = ("bash", "-c", 'exec 2> >(cat >&2); ulimit -f 2; exec "$@"', "limited")
    hosts.start("party 0", "party 2", DEALER)
    hosts.start("party 1", before=limited)
    endings = hosts.endings()
    code, line = endings.pop("party 1")
    assert code == 1 and "the disk is full: cannot write" in line and "releases.jsonl" in line, line
    assert all(f"{named(1)}: stopped: its disk is full" in line for _, line in endings.values()), endings


@pytest.mark.slow
def test_a_certificate_of_another_authority(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "hosts", connect=MEETING)
    make_certificates(tmp_path / "others", 3)
    shutil.copytree(tmp_path / "others" / "party-2", hosts.home("party 2") / "certs" / "party-2", dirs_exist_ok=True)
    try:
        hosts.start(*PLACES)
        endings = hosts.endings()
    finally:
        hosts.close()
    assert_stopped(endings, named(2), named(0), named(1))
    assert "certificate not accepted" in hosts.log("party 0")
    for name in ("party 0", "party 1"):
        assert named(2) in endings[name][1], endings
    log = hosts.log("party 2")  # by whom it hears it first, as it dials or is dialled, depends on who is quicker
    assert "does not accept our certificate" in log or "unknown ca" in log, log


@pytest.mark.slow
def test_a_host_whose_clock_is_wrong(tmp_path: Path) -> None:
    """By it no certificate is valid yet: it says so itself, with both times; the others say who did not come."""
    hosts = Hosts(tmp_path, connect=MEETING)
    try:
        hosts.start("party 0", "party 1", DEALER)
        hosts.start("party 2", instead=("wrong_clock.py",))
        endings = hosts.endings()
    finally:
        hosts.close()
    code, line = endings.pop("party 2")
    assert code == 2 and "the clock of this host says" in line and "valid from" in line, line
    assert all(named(2) in line for _, line in endings.values()), endings


@pytest.mark.slow
def test_a_setting_that_differs_is_named_on_every_host_that_meets_it(hosts: Hosts) -> None:
    other = replace(hosts.config, connect=MEETING, options={**hosts.config.options, "seed": 7})
    hosts.start("party 0", "party 1", DEALER, config=replace(hosts.config, connect=MEETING))
    hosts.start("party 2", config=other)
    endings = hosts.endings()
    lines = [line for _, line in endings.values() if "options.seed is " in line]
    assert len(lines) >= 2 and any("options.seed is 7 there and not set here" in line for line in lines), endings
