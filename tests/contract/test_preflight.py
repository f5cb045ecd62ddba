"""A preflight makes every connection of a session once and compares public facts; it reads and charges nothing."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import PeerError
from secure_sccvfl.protocols.net.preflight import Met, Preflight
from secure_sccvfl.protocols.net.rendezvous import Rendezvous
from secure_sccvfl.runs.member.preflight import facts_of, verdict
from tests.support.sessions import CERTIFICATES, CONNECT, credentials, in_threads, local_config

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
NAMES = ("bank", "employer")


def met_by(
    config: SessionConfig, listeners: list[socket.socket], facts: Mapping[str, str], node: int
) -> dict[int, Met]:
    listener = listeners[node] if node < config.dealer else None
    return {one.node: one for one in Preflight(config, node, credentials(node, 2), listener, facts).meet()}


def test_all_members_meet_in_both_directions_and_find_what_differs() -> None:
    config, listeners = local_config(2, names=NAMES, connect=CONNECT)
    same = {"code protocols": "a", "setting seed": "0"}
    facts = [{**same, "plan data": "b"}, {**same, "setting seed": "1", "plan data": "c"}, same]
    met = in_threads([partial(met_by, config, listeners, facts[node], node) for node in range(3)])
    assert [sorted(one) for one in met] == [[1, 2], [0, 2], [0, 1]]
    assert not any(peer.problem for one in met for peer in one.values())
    line, problems = verdict(met[0][1], facts[0])
    assert "versions equal, session file DIFFERENT, plan DIFFERENT" in line
    assert problems == ["session file differs: seed is 1 there and 0 here", "plan differs: data"]
    line, problems = verdict(met[0][2], facts[0])
    assert line.endswith("versions equal, session file equal, plan not compared") and problems == []


def test_a_peer_that_is_away_is_named_and_the_others_are_measured() -> None:
    config, listeners = local_config(2, names=NAMES, connect=6.0)
    listeners[1].close()
    met = in_threads([partial(met_by, config, listeners, {"code x": "1"}, node) for node in (0, 2)])
    for one in met:
        assert one[1].problem.startswith("not met within 6 s: ")
    assert f"dialled {config.parties[1]}: Connection refused" in met[1][1].problem
    assert not met[0][2].problem and not met[1][0].problem


def test_a_stranger_is_not_measured_and_a_session_does_not_take_a_preflight_for_a_member() -> None:
    config, listeners = local_config(2, names=NAMES, connect=6.0)
    pinned = replace(config, certificates=dict.fromkeys(("party-0", "party-1", "dealer"), "0" * 64))
    with pytest.raises(Exception, match="is not the one that the session file pins"):
        Preflight(pinned, 0, credentials(0, 2), listeners[0], {})

    def session() -> str:
        with pytest.raises(PeerError) as caught:
            Rendezvous(config, 0, credentials(0, 2), listeners[0]).run()
        return str(caught.value)

    told, met = in_threads([session, partial(met_by, config, listeners, {}, 1)])
    assert "party 1 (employer): runs `sccvfl preflight`, and this process does not" in told
    assert met[0].problem


def test_clocks_that_are_apart_are_a_problem() -> None:
    peer = Met(1, "party 1", 0.01, 90.0, {"code x": "1"})
    line, problems = verdict(peer, {"code x": "1"})
    assert "clock +90.00 s" in line and problems == ["its clock is +90 s ahead of ours: set one of them"]
    assert verdict(replace(peer, ahead=-30.0), {"code x": "1"})[1] == []
    assert verdict(replace(peer, ahead=float("nan")), {"code x": "1"})[1] != []
    assert verdict(replace(peer, ahead=0.0, facts={}), {"code x": "1"})[1] == ["told no versions"]


def test_facts_are_public_and_the_dealer_needs_no_description(tmp_path: Path) -> None:
    config = SessionConfig(("127.0.0.1:1", "127.0.0.1:2"), options={"dataset": "gone.toml"}, jobs=("train",))
    facts = facts_of(config, config.dealer)
    assert {key.partition(" ")[0] for key in facts} == {"code", "setting"}
    with pytest.raises(Exception, match=r"cannot read the description gone\.toml"):
        facts_of(config, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name this host: --rank N at a party, --dealer at the dealer"),
        (["--rank", "0", "--dealer"], "name this host"),
        (["--rank", "5"], "rank must be from 0 to 1, not 5"),
        (["--rank", "0", "--wait", "0"], "--wait must be above 0 seconds"),
    ],
)
def test_a_preflight_that_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    path = tmp_path / "session.toml"
    path.write_text('parties = ["127.0.0.1:1", "127.0.0.1:2"]\njob = "selftest"\n')
    assert main(["preflight", str(path), "--certs", str(CERTIFICATES), *words]) == 2
    assert message in capsys.readouterr().err
