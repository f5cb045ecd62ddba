"""The status page: what it answers, to whom, and what a browser makes of it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import InputError, ProtocolError
from secure_sccvfl.protocols.net.rendezvous import listen, listen_anywhere
from secure_sccvfl.runs.process import telling_others
from secure_sccvfl.runs.status import _MOST_AT_ONCE, Status, StatusServer, Watching
from tests.support.browser import CHROMIUM, Browser
from tests.support.sessions import LONG

pytest.importorskip("prometheus_client")
HOSTILE = "<script>document.title='broken'</script> bank"


def free_port(host: str = "127.0.0.1") -> int:
    if host == "127.0.0.1":
        listener, address = listen_anywhere()
        listener.close()
        return int(address.rpartition(":")[2])
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def own_address() -> str | None:
    """An address of this machine that is not a loopback one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


@pytest.fixture(scope="module")
def served() -> Iterator[StatusServer]:
    status = Status("party 0")
    status.describe(HOSTILE, "loans", "train", ("selftest", "train"))
    status.phase("running")
    for number in (0, 4):
        status.begins("alignment", number, 8)
    status.activity.connecting({1: "party 1 (employer)", 2: "dealer"}, 1e18)
    status.activity.facts |= {"epsilon": 3.25, "cap": 8.0}
    status.problem("turned away 10.0.0.9:1234 (it has no certificate)")
    server = StatusServer(status, free_port())
    yield server
    server.close()


def asked(server: StatusServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    """Code, security policy and text of an answer."""
    name, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(name, int(port), timeout=LONG)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers.get("Content-Security-Policy", ""), text


def test_silent_connections_make_room_for_a_request(served: StatusServer) -> None:
    """As many as there are threads, none of which sends a whole request: each used to keep its thread for 5 s."""
    name, _, port = served.address.rpartition(":")
    silent = [socket.create_connection((name, int(port)), LONG) for _ in range(_MOST_AT_ONCE)]
    silent[0].sendall(b"GET / HTTP/1.0\r\n")
    assert [asked(served, "/status.json")[0] for _ in range(3)] == [200] * 3
    for one in silent:
        one.close()


def test_three_paths_are_answered_and_no_other(served: StatusServer) -> None:
    for path, part in (("/", "<!doctype html>"), ("/status.json", '"place"'), ("/metrics", "sccvfl_rounds_total")):
        code, policy, text = asked(served, path)
        assert code == 200 and part in text
        assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
    assert asked(served, "/status.json?x=1")[0] == 200
    for path in ("/secret", "/../etc/passwd", "/status.json/"):
        assert asked(served, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert asked(served, "/", method)[0] == 501


def test_only_the_hosts_own_names_are_answered(served: StatusServer) -> None:
    for good in ("localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:8080"):
        assert asked(served, "/status.json", host=good)[0] == 200, good
    for bad in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "a@127.0.0.1"):
        code, _, text = asked(served, "/status.json", host=bad)
        assert code == 421 and "place" not in text, bad


def test_on_all_addresses_any_address_is_a_name_but_no_other_name_is() -> None:
    server = StatusServer(Status("party 0"), free_port(), "0.0.0.0")
    try:
        assert (
            server.answers_to("10.0.0.1:80") and server.answers_to("localhost") and server.answers_to("[fd00::1]:1")
        )
        assert not server.answers_to("evil.example") and not server.only_here
    finally:
        server.close()


@pytest.mark.skipif(own_address() is None, reason="this machine has no other address")
def test_it_answers_on_the_loopback_address_alone(served: StatusServer) -> None:
    port = int(served.address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((str(own_address()), port), timeout=LONG)
    open_on_purpose = StatusServer(Status("party 0"), free_port(), str(own_address()))
    try:
        assert asked(open_on_purpose, "/status.json")[0] == 200
    finally:
        open_on_purpose.close()


def test_metrics_are_what_the_page_says(served: StatusServer) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    status = json.loads(asked(served, "/status.json")[2])
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(asked(served, "/metrics")[2])
        for sample in family.samples
    }
    assert samples["sccvfl_budget_epsilon",] == status["budget"]["epsilon"] == 3.25
    assert samples["sccvfl_step",] == status["step"]["number"] + 1 == 5 and samples["sccvfl_steps",] == 8
    assert samples["sccvfl_peer_connected", "party 1 (employer)"] == 0
    assert samples["sccvfl_rounds_total",] == status["rounds"] == 0
    assert samples["sccvfl_memory_now_bytes",] > 1e6


def test_errors_about_own_data_are_shown_by_their_kind() -> None:
    status = Status("party 0")
    status.stops(InputError("row 17 of the bank is 4211"))
    shown = json.dumps(status.snapshot())
    assert "InputError" in shown and "4211" not in shown


def test_words_of_libraries_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    with Watching().of("party 0") as watched:
        logging.getLogger("py.warnings").warning("overflow in 4211")
        logging.getLogger("secure_sccvfl.protocols.net.rendezvous").warning("turned away 10.0.0.9")
        assert watched.snapshot()["problems"] == ["turned away 10.0.0.9"]


def test_a_party_whose_data_are_bad_shows_no_cell_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """Its log has the whole line, for people on this host; the page, which may be open to others, its kind alone."""
    config = SessionConfig(parties=("127.0.0.1:1", "127.0.0.1:2"))
    with Watching().of("party 0") as watched:
        with pytest.raises(InputError), telling_others(config, 0, None, None, watched):
            raise InputError("bank: age: outside the public range: 4211 (at 'p17')")
        shown = json.dumps(watched.snapshot())
    assert "4211" in caplog.text
    assert "InputError" in shown and "4211" not in shown and "p17" not in shown


@pytest.mark.parametrize(("port", "host"), [(0, "127.0.0.1"), (70_000, "127.0.0.1"), (None, "0.0.0.0")])
def test_settings_that_cannot_work(port: int | None, host: str) -> None:
    with pytest.raises(ConfigError, match="--status"):
        Watching(port, host)


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    port = free_port()
    with listen(f"127.0.0.1:{port}"), pytest.raises(ProtocolError, match="cannot listen on"):
        StatusServer(Status("party 0"), port)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser(served: StatusServer, tmp_path: Path) -> None:
    """Light and dark, a desk and a phone: filled in, nothing too wide, names are text, nothing in the console."""
    with Browser(tmp_path) as browser:
        for width, theme, back in ((1200, "light", "246, 247, 249"), (375, "dark", "16, 21, 27")):
            browser.open(f"http://{served.address}/", width, theme)
            seen = browser.until(
                "document.body?.dataset.shown && {title:document.title,wide:document.documentElement.scrollWidth,"
                "back:getComputedStyle(document.body).backgroundColor,text:document.body.innerText,"
                "cut:[...document.querySelectorAll('section,.figure')].filter(s=>s.scrollWidth>s.clientWidth).length}"
            )
            assert (seen["wide"], seen["back"], seen["cut"]) == (width, f"rgb({back})", 0)
            assert seen["title"] == f"{HOSTILE}: connecting"
            for part in (
                HOSTILE,
                "alignment (5 of 8)",
                "ε 3.25",
                "party 1 (employer)",
                "turned away",
            ):
                assert part in seen["text"], part
            assert browser.complaints == []
        browser.ask("Runtime.evaluate", expression="document.body.style='color:red'; gone()")
        browser.ask("Runtime.evaluate", expression="fetch('http://192.0.2.1/').catch(()=>0); console.log('x')")
        assert any("Content Security Policy" in line for line in browser.complaints), "the policy is in force"
