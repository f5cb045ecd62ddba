"""Five hosts go the whole way of docs/operating.md: from three CSV files to a report at every party, and predictions.

The commands are those of the page, word by word, and nothing is edited by hand. Each host has its own files alone.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import secure_sccvfl as scc
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.protocols.net.certificates import spoken
from tests.multiprocess.programs import ROOT
from tests.multiprocess.walked import HOSTS, NODE, PARTIES, Namespaces, Step, Walk, network, walk_of

MOST_COMMANDS = 8
"""At any host, from its file to a finished report."""
ROWS, NEW = 400, 20
OWN_NAMES = {"y": "late", "s": "from_25"}
TO_A_REPORT, AFTERWARDS = walk_of(ROOT / "docs" / "operating.md")
REFUSED = 2


STARTS = {step.host: step for step in TO_A_REPORT if NODE.match(step.text)}
"""The command that starts the session at each host."""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """German Credit, 19 columns at three parties; all commands of the page have ended well."""
    with network() as net:
        walk = Walk(tmp_path_factory.mktemp("consortium"), net)
        for party, frame in scc.load("german").frames.items():
            renamed = frame.rename(columns=OWN_NAMES)
            renamed[:ROWS].to_csv(walk.home(party) / f"{party}.csv", index=False)
            renamed[ROWS : ROWS + NEW].to_csv(walk.home(party) / "new.csv", index=False)
        walk.go(TO_A_REPORT)
        walk.go(AFTERWARDS)
        yield walk


@pytest.fixture
def copied(walk: Walk, tmp_path: Path) -> Walk:
    """The same hosts, to be damaged."""
    shutil.copytree(walk.folder, tmp_path / "hosts")
    return Walk(tmp_path / "hosts", walk.net)


def report_of(walk: Walk, party: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((walk.home(party) / "out" / "report.json").read_text())
    return report


def said(walk: Walk, host: str, text: str) -> tuple[int, str]:
    """Exit code of a command that needs no other host, and what it said."""
    before = len(walk.log(host))
    code = walk.do(Step(host, text))
    return code, walk.log(host)[before:].partition("\n")[2]


def test_every_party_has_the_same_report_with_all_approvals(walk: Walk) -> None:
    reports = [report_of(walk, party) for party in PARTIES]
    public = [{k: v for k, v in one.items() if k not in ("models", "cost", "host")} for one in reports]
    assert public[0] == public[1] == public[2]
    report = reports[0]
    assert report["party_names"] == list(PARTIES) and len(report["roles"]) == 19
    assert "acc" in report["metrics"]
    assert [(one["place"], one["name"]) for one in report["approvals"]] == [
        (f"party-{rank}", party) for rank, party in enumerate(PARTIES)
    ]
    assert len({one["digest"] for one in report["approvals"]}) == 1
    for party in PARTIES:
        assert f"on the host of {party}" in (walk.home(party) / "out" / "report.html").read_text()
        assert "out can be trusted: " in walk.log(party)
        assert spoken(report["approvals"][0]["digest"]) in walk.log(party), "approve showed it"


def test_only_the_receiver_has_the_decisions(walk: Walk) -> None:
    paths = [path.relative_to(walk.folder).as_posix() for path in walk.folder.rglob("predictions.csv")]
    assert paths == ["bank/out/predict/predictions.csv"]
    with (walk.folder / paths[0]).open() as file, (walk.home("bank") / "new.csv").open() as given:
        decided = {row["id"] for row in csv.DictReader(file)}
        assert decided == {row["id"] for row in csv.DictReader(given)}


def test_keys_and_records_stay_at_home(walk: Walk) -> None:
    """By name and by content: no key and no table lies in the folder of another host."""
    every = {host: [path for path in walk.home(host).rglob("*") if path.is_file()] for host in HOSTS}
    node_names = dict(zip(HOSTS, ("party-0", "party-1", "party-2", "dealer", ""), strict=True))
    for host, node in node_names.items():
        keys = {path.relative_to(walk.home(host)).as_posix() for path in every[host] if "key" in path.name}
        keys -= {f"sccvfl-ledgers/{node}/records.key"}  # for the tags of records, which the parties share
        logs = {key for key in keys if Path(key).match(f"sccvfl-ledgers/{node}/predictions-*.key")}
        assert len(logs) == (host in PARTIES), "a key of the own log of predictions"
        keys -= logs
        assert keys == ({f"certs/{node}/key.pem"} if node else {"authority/ca-key.pem"})
        tables = {path.name for path in every[host] if path.suffix == ".csv"} - {"predictions.csv"}
        assert tables == ({f"{host}.csv", "new.csv"} if host in PARTIES else set())
        private_endings = ("key.pem", ".csv", *(Path(key).name for key in logs))
        secret = [path.read_bytes() for path in every[host] if path.name.endswith(private_endings)]
        for other in set(HOSTS) - {host}:
            for path in every[other]:
                content = path.read_bytes()
                assert not any(kept in content for kept in secret), f"{path} at the {other} is of the {host}"
    assert not list(walk.home("dealer").rglob("loans.toml")), "the dealer needs no description"


def test_the_hosts_are_apart_where_that_is_allowed(walk: Walk) -> None:
    """In namespaces the session file has names, and only these hosts know them."""
    parties = load_session(walk.home("dealer") / "session.toml").parties
    if isinstance(walk.net, Namespaces):
        assert parties == tuple(f"{party}.example:7100" for party in PARTIES)
    else:
        assert len({address.partition(":")[0] for address in parties}) == len(PARTIES)


def test_few_commands_are_needed() -> None:
    counted = {host: sum(step.host == host for step in TO_A_REPORT) for host in HOSTS}
    assert max(counted.values()) <= MOST_COMMANDS, counted


def test_the_readme_shows_the_same_commands() -> None:
    shown = [step for script in walk_of(ROOT / "README.md") for step in script]
    assert len(shown) >= 5 and set(shown) <= {*TO_A_REPORT, *AFTERWARDS}


def test_a_plan_that_one_party_changes_after_approval_is_refused_and_the_party_named(copied: Walk) -> None:
    """The bank leaves a job out, and approves that. The others find that what it approved is not their plan."""
    session = copied.home("bank") / "session.toml"
    session.write_text(session.read_text().replace('"selftest", ', ""))
    shutil.rmtree(copied.home("bank") / "out")
    code, output = said(copied, "bank", STARTS["bank"].text)
    assert code == REFUSED
    everyone = "party 0 (bank), party 1 (employer), party 2 (bureau)"
    assert f"{everyone}: the plan changed since the approval: the session file" in output
    assert said(copied, "bank", "sccvfl approve session.toml --certs certs --rank 0")[0] == 0
    code, output = said(copied, "bank", STARTS["bank"].text)
    assert code == REFUSED and "party 1 (employer), party 2 (bureau): the plan changed" in output
    assert "party 0 (bank)" not in output
    shutil.rmtree(copied.home("employer") / "out")
    assert said(copied, "employer", "scp bank.example:approvals/party-0.json approvals")[0] == 0
    code, output = said(copied, "employer", STARTS["employer"].text)
    assert code == REFUSED and "party 0 (bank): the plan changed since the approval: the session file" in output
    assert "party 1 (employer): the plan" not in output and "party 2" not in output
    assert not (copied.home("employer") / "out").exists(), "nothing was begun"


def renew_at_the_bureau(walk: Walk) -> None:
    """Its key and certificate are new ones, which the authority signed; no session file pins them."""
    for step in (
        Step("bureau", "sccvfl certs request certs --member party-2 --name bureau --renew"),
        Step("authority", "scp bureau.example:certs/request-party-2.pem ."),
        Step("authority", "sccvfl certs sign request-party-2.pem --authority authority --renew"),
        Step("bureau", "scp authority.example:authority/issued/party-2.pem ."),
        Step("bureau", "sccvfl certs install party-2.pem ca.pem certs"),
    ):
        assert walk.do(step) == 0, walk.log(step.host)


def test_a_certificate_that_is_signed_but_not_pinned_is_refused(copied: Walk) -> None:
    renew_at_the_bureau(copied)
    pin = load_session(copied.home("bureau") / "session.toml").certificates["party-2"]
    code, output = said(copied, "bureau", "sccvfl approve session.toml --certs certs --rank 2")
    assert code == REFUSED and f"but the session file pins {pin[:8]}" in output
    shutil.rmtree(copied.home("bureau") / "out")
    code, output = said(copied, "bureau", STARTS["bureau"].text)
    assert code == REFUSED and "pins for party-2" in output and pin[:8] in output, output
