"""Single decisions at an endpoint while a session stays open, over real sessions."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs import endpoint, serve
from secure_sccvfl.runs.endpoint import ENDPOINT
from secure_sccvfl.runs.jobs import agreed_plan
from secure_sccvfl.runs.predict import CHANGED, ELSEWHERE, LOST
from secure_sccvfl.runs.serve import ALIKE, FULL, HERE, ServeJob
from secure_sccvfl.runs.status import _MOST_AT_ONCE
from secure_sccvfl.runs.train import TrainJob
from tests.contract.test_prediction_log import ROOMY, Consortium, some, with_changed
from tests.support.sessions import LONG
from tests.support.two_parties import ADDRESSES, BANK, CLINIC, People, opened, people, run_two, write, write_two

MOST = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("served")
    options = {**write_two(home, people(400, 8)), **ROOMY, "predictions": MOST, "align": "exact"}
    run_two(TrainJob, home / "run", options)
    return home


@pytest.fixture
def one(trained: Path, tmp_path: Path) -> Consortium:
    return Consortium(trained, tmp_path, "exact")


class Served:
    """A session that serves, in a thread; `with` stops it unless it has ended."""

    def __init__(self, one: Consortium, bank: People, clinic: People, **more: Any) -> None:
        one.asked += 1
        self.out, self.error, self.results = one.out, "", list[dict[str, Any]]()
        files = [write(one.home / f"new-{k}.csv", *rows) for k, rows in enumerate(((bank, BANK), (clinic, CLINIC)))]
        self._each = [{"records": str(path)} for path in files]
        self._options = {"dataset": str(one.home / "own.toml"), "align": one.align, "model": str(one.home / "run")}
        self._options |= {"port": 0, "predictions": MOST, **more}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.results = run_two(ServeJob, self.out, self._options, self._each)
        except ExceptionGroup as error:
            self.error = "; ".join(map(str, error.exceptions))

    def __enter__(self) -> Served:
        self._thread.start()
        path, end = self.out / "party-0" / ENDPOINT, time.monotonic() + LONG
        while not path.exists() or not path.read_text():
            assert self._thread.is_alive() and time.monotonic() < end, self.error
            time.sleep(0.01)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        self.endpoint = json.loads(path.read_text())
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread.is_alive():
            self.post("/stop")
        self.ended()

    def ended(self) -> str:
        """What the parties said when the session stopped; "" if it ended well."""
        self._thread.join(LONG)
        assert not self._thread.is_alive()
        return self.error

    def post(self, path: str, token: str | None = None, **content: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.endpoint['token'] if token is None else token}"}
        request = urllib.request.Request(self.endpoint["url"] + path, json.dumps(content).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=LONG) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def decision(self, person: str) -> tuple[int, Any]:
        status, content = self.post("/decision", id=person)
        return status, content.get("answer", content.get("refused"))


def test_each_person_is_decided_as_by_predict_recorded_once_and_given_again(one: Consortium) -> None:
    """The control: predict, asked for the same people later, returns what is on record and opens nothing."""
    new = people(8, 1, "n")
    with Served(one, new, new, certified=True) as served:
        first = {name: served.decision(name) for name in new["id"][:6]}
        turns = opened(served.out).count("predictions")
        assert {name: served.decision(name.upper()) for name in first} == first
        assert opened(served.out).count("predictions") == turns == 6, "nobody was asked again"
    assert served.error == "" and [one["records"] for one in served.results] == [6, 6]
    assert not (served.out / "party-0" / ENDPOINT).exists() and {status for status, _ in first.values()} == {200}
    one.ask(some(new, slice(0, 6)), some(new, slice(0, 6)), certified=True)
    assert one.predictions == {name: {**answer, "id": name} for name, (_, answer) in first.items()}
    assert len({answer["decision"] for _, answer in first.values()}) == 2
    for rank in range(2):
        kinds = [json.loads(line)["kind"] for line in one.log(rank).read_text().splitlines()]
        assert kinds.count("asked") == kinds.count("opening") == 7


def test_many_clients_at_once_get_one_answer_for_each_person(one: Consortium) -> None:
    new = people(5, 2, "n")
    with Served(one, new, new) as served, ThreadPoolExecutor(8) as clients:
        names = [*new["id"], *new["id"], *new["id"]]
        answers = list(clients.map(served.decision, names))
    assert {status for status, _ in answers} == {200} and served.results[0]["on_record"] == 5
    assert answers[:5] == answers[5:10] == answers[10:]


def test_who_cannot_be_decided_is_refused_with_the_reason(one: Consortium) -> None:
    new = people(6, 3, "n")
    bank = with_changed(new, 1, amount=7)
    clinic = {name: values[[0, 1, 3, 4, 5]] for name, values in with_changed(new, 3, hours="?").items()}
    with Served(one, bank, clinic) as served:
        assert served.decision("nobody") == (404, "this host has no record with that id")
        assert served.decision("n1") == (409, HERE)
        assert served.decision("n2") == served.decision("n3") == (409, ELSEWHERE), "not held, or not readable"
        assert served.decision("n0")[0] == 200
        assert served.decision("n2") == (409, ELSEWHERE), "nothing was opened, so it may be asked again"
    assert served.results[0]["on_record"] == 1
    with Served(one, with_changed(bank, 0, amount=0.123), clinic) as served:
        assert served.decision("n0") == (409, CHANGED)


def test_nobody_gets_the_decision_of_a_record_with_a_similar_id(one: Consortium) -> None:
    """The log counts ids that differ in case as one. The receiver's file has both; then each party has one."""
    new = people(3, 11, "n")
    new["id"] = np.array(["aB3", "Ab3", "n2"], object)
    with Served(one, new, new) as served:
        assert served.decision("aB3") == served.decision("Ab3") == served.decision("ab3") == (409, ALIKE)
        assert served.decision("n2")[0] == 200
    with Served(one, some(new, slice(0, 1)), some(new, slice(1, 2))) as served:
        assert served.decision("aB3") == (409, ELSEWHERE)
    with Served(one, some(new, slice(1, 2)), new) as served:
        assert served.decision("ab3")[0] == 200, "the other party has both, and takes the right one"
        answer = served.decision("Ab3")
    one.ask(some(new, slice(1, 2)), some(new, slice(1, 2)))
    assert one.predictions["Ab3"]["decision"] == answer[1]["decision"]


def test_a_person_whom_another_party_has_on_record_is_not_decided(one: Consortium) -> None:
    new = people(2, 4, "n")
    with Served(one, new, new) as served:
        assert served.decision("n0")[0] == 200
    lines = one.log(0).read_text().splitlines()
    assert '"answers"' in lines[-1]
    one.log(0).write_text("\n".join(lines[:-1]) + "\n")  # as after a crash
    with Served(one, new, new) as served:
        assert served.decision("n0") == (409, LOST) and served.decision("n1")[0] == 200


def test_the_plan_bounds_how_many_are_decided(one: Consortium) -> None:
    new = people(MOST + 1, 5, "n")
    with Served(one, new, new) as served:
        statuses = [served.decision(name)[0] for name in new["id"]]
        assert statuses == [200] * MOST + [429] and served.decision(new["id"][-1]) == (429, FULL)
        assert served.decision(new["id"][0])[0] == 200, "an answer on record can still be read"
    assert served.error == "" and served.results[0]["on_record"] == MOST


def test_a_party_whose_log_is_full_refuses_new_people_and_the_session_continues(
    one: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, full = people(2, 6, "n"), [1]
    monkeypatch.setattr(serve._Desk, "_full", property(lambda desk: desk.session.rank in full))
    with Served(one, new, new) as served:
        assert served.decision("n0") == (409, ELSEWHERE)
        full.clear()
        assert served.decision("n1")[0] == 200
    assert served.error == ""


@pytest.mark.parametrize(
    ("path", "token", "content", "status"),
    [
        ("/decision", "", {"id": "n0"}, 401),
        ("/stop", "0" * 64, {}, 401),
        ("/other", None, {"id": "n0"}, 404),
        ("/decision", None, {"name": "n0"}, 400),
        ("/decision", None, {"id": 7}, 400),
        ("/decision", None, {"id": "n" * 5000}, 400),
        ("/decision", None, {"id": "\ud800"}, 400),
    ],
)
def test_requests_without_token_or_id_are_refused_and_ask_nobody(
    one: Consortium, path: str, token: str | None, content: dict[str, Any], status: int
) -> None:
    new = people(1, 6, "n")
    with Served(one, new, new) as served:
        assert served.post(path, token, **content)[0] == status
        assert "predictions" not in opened(served.out)
    assert served.error == ""


def test_silent_local_connections_do_not_keep_a_person_from_an_answer(one: Consortium) -> None:
    new = people(1, 9, "quiet")
    with Served(one, new, new) as served:
        host, _, port = served.endpoint["url"].removeprefix("http://").rpartition(":")
        silent = [socket.create_connection((host, int(port)), LONG) for _ in range(_MOST_AT_ONCE)]
        silent[0].sendall(b"POST /decision HTTP/1.0\r\nContent-Length: 4096\r\n\r\n{")
        assert served.decision("quiet0")[0] == 200
        for connection in silent:
            connection.close()


def test_a_party_that_fails_ends_the_session_with_its_name_and_answers_whoever_waits(
    one: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clinic stops at the third person, before a share is sent: two answers stand, and no third one is opened."""
    new, honest, seen = people(5, 7, "n"), ServeJob.opened, [0]

    def stops(self: ServeJob, session: Session, *rest: Any) -> Any:
        seen[0] += session.rank
        if session.rank == 1 and seen[0] == 3:
            raise OSError("a fault")
        return honest(self, session, *rest)

    monkeypatch.setattr(ServeJob, "opened", stops)
    with Served(one, new, new) as served:
        answers = [served.decision(name) for name in new["id"][:3]]
        assert [status for status, _ in answers] == [200, 200, 503]
        assert answers[2][1].startswith("the session ended: ") and "party 1" in answers[2][1], "or the dealer says so"
        assert "party 1" in served.ended() and opened(served.out).count("predictions") == 2
    monkeypatch.setattr(ServeJob, "opened", honest)
    with Served(one, new, new) as served:
        assert [served.decision(name) for name in new["id"][:2]] == answers[:2], "no decision is lost"
        assert served.decision(new["id"][2])[0] == 200, "and nobody was given one"


def test_a_party_that_fails_while_nobody_asks_is_noticed(one: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BEAT", 0.02)
    new, honest, beats = people(1, 8, "n"), Session.swap_bytes, [0]

    def stops(self: Session, step: str, message: bytes) -> Any:
        beats[0] += self.rank and step == "next request"
        if self.rank == 1 and beats[0] == 4:
            raise OSError("a fault")
        return honest(self, step, message)

    monkeypatch.setattr(Session, "swap_bytes", stops)
    with Served(one, new, new) as served:
        assert "party 1" in served.ended()


def test_the_other_parties_hear_of_a_receiver_that_answers_from_its_log_without_a_pause(tmp_path: Path) -> None:
    server, asked = endpoint.Endpoint(tmp_path, 0), [0]

    def local(person: str) -> endpoint.Reply:
        asked[0] += 1
        server.requests.put(endpoint.Request(person))  # as clients that wait in a row
        return endpoint.Reply(200, {})

    try:
        server.requests.put(endpoint.Request("p1"))
        clients = threading.Thread(target=endpoint._next, args=(server, local, 0.1), daemon=True)
        clients.start()
        clients.join(LONG)
        assert not clients.is_alive() and asked[0] > 1
    finally:
        server.close("")


def test_the_dealer_is_kept_while_nobody_asks(one: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop after `idle` seconds without a request; the comparison comes after a quarter of them."""
    monkeypatch.setattr(endpoint, "BEAT", 0.02)
    monkeypatch.setattr(ServeJob, "idle", property(lambda self: 0.0, lambda self, value: None), raising=False)
    new = people(1, 9, "n")
    kinds: list[int] = []
    honest = Session.swap_bytes

    def watched(self: Session, step: str, message: bytes) -> Any:
        if self.rank == 0 and step == "next request":
            kinds.append(message[0])
        return honest(self, step, message)

    monkeypatch.setattr(Session, "swap_bytes", watched)
    with Served(one, new, new) as served:
        end = time.monotonic() + LONG
        while endpoint.AWAKE not in kinds:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert served.decision("n0")[0] == 200
    assert served.error == ""


def test_an_approved_plan_covers_what_a_session_opens_and_no_more_people(one: Consortium) -> None:
    new = people(1, 10, "n")
    records = write(one.home / "new.csv", new, BANK)
    options = {"dataset": str(one.home / "own.toml"), "predictions": MOST}
    pins = {node: "0" * 64 for node in ("party-0", "party-1", "dealer")}
    approved = SessionConfig(parties=ADDRESSES, job="serve", options=options, certificates=pins, connect=600.0)
    here = {**options, "model": str(one.home / "run"), "records": str(records)}
    plan = agreed_plan(approved, ServeJob(replace(approved, options=here), 0))
    assert plan.releases["predictions"].shape[0] == 1 and plan.releases["predictions"].times == MOST
    with pytest.raises(ConfigError, match="would open 'predictions' otherwise than the approved plan says"):
        agreed_plan(approved, ServeJob(replace(approved, options={**here, "predictions": MOST + 1}), 0))
    with pytest.raises(ConfigError, match="otherwise than the approved plan says"):
        agreed_plan(approved, ServeJob(replace(approved, options={**here, "what_if": True}), 0))
