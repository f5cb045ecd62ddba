"""Common mistakes, each through the console program: one line that says what to do, and no traceback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.card import shipped_card

DESCRIPTION = """
name = "loans"
task = "binary"
id = "id"
label = { party = "bank", column = "late", classes = ["0", "1"] }
protected = [ { party = "office", column = "over_40", groups = ["no", "yes"] } ]
[parties.bank]
file = "bank.csv"
features = [ { name = "amount", kind = "number", low = 0, high = 50000 } ]
[parties.office]
file = "office.csv"
features = [ { name = "job", kind = "category", categories = ["a", "b", "c"] } ]
"""
SESSION = 'parties = ["127.0.0.1:1", "127.0.0.1:2"]\njob = "train"\n[options]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, everything in it in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    rows = range(200)
    Path("loans.toml").write_text(DESCRIPTION)
    Path("bank.csv").write_text("id,amount,late\n" + "".join(f"{i},{i * 10},{i % 2}\n" for i in rows))
    Path("office.csv").write_text(
        "id,job,over_40\n" + "".join(f"{i},{'abc'[i % 3]},{('no', 'yes')[i // 2 % 2]}\n" for i in rows)
    )
    Path("session.toml").write_text(SESSION + 'dataset = "loans.toml"\n')
    Path("jobs.toml").write_text((SESSION + 'dataset = "loans.toml"\n').replace('job = "train"', 'jobs = ["train"]'))
    Path("twice.csv").write_text("id,x\n" + "".join(f"{max(i, 1)},{i % 7}\n" for i in range(60)))
    Path("twice-unique.csv").touch()
    Path("full").mkdir()
    Path("full/something").touch()
    Path("run").mkdir()
    Path("selftest.toml").write_text('parties = ["127.0.0.1:1", "127.0.0.1:2"]')
    Path("old").mkdir()
    Path("old/releases.jsonl").touch()
    return tmp_path


def mistaken(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Run a command that must fail with one line; returns it."""
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    assert code in (1, 2), shown
    assert "Traceback" not in shown.err and "unexpected" not in shown.err, shown.err
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    return shown.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dance", "no command 'dance'; available: run,"),
        ("run --partys 3", "no option --partys; did you mean --parties?"),
        ("run --parties 1", "at least 2"),
        ("run --parties 50", "2 to that many parties, not 50"),
        ("run --dataset loans.toml --parties 3", "loans.toml has 2 parties, the session 3"),
        ("run --dataset moon", "no data set 'moon': use one of"),
        ("run --dataset absent.toml", "cannot read the description absent.toml"),
        ("run --out full", "full is not empty; choose a new folder"),
        ("run --epsilon -1", "epsilon must be"),
        ("run --delta 2", "delta must lie between 0 and 1"),
        ("run --refreshes -2", "refreshes"),
        ("run --card absent.toml", "cannot read the policy card absent.toml"),
        (
            "run --card shipped --dataset synthetic:600",
            "no card is shipped for 'synthetic', and there is no such",
        ),
        ("run --card moon", "no card is shipped for 'moon', and there is no such file"),
        ("run --card acs12 --dataset german", "the policy card names 'age', which is no column of german"),
        ("run --score x", "invalid choice: 'x'"),
        ("run --mode aware", "must declare it in an entry [aware]"),
        ("run --mode aware --card shipped", "must declare it in an entry [aware]"),
        ("run --resume full", "full is not the folder of a run: it has no session.toml"),
        ("predict --model run", "predict needs --model RUN and --records FILE"),
        ("predict --model full --records bank.csv", "full is not the folder of a run"),
        ("reproduce main --dataset moon --out out", "no data set 'moon'"),
        ("party --rank 0 --config absent.toml --out out", "cannot read the session file absent.toml"),
        ("party --rank 0 --config loans.toml --out out", "unknown setting"),
        ("party --rank 7 --config session.toml --out out", "no party 7"),
        ("party --rank 0 --config session.toml --out out", "needs certificates"),
        ("party --rank 0 --config session.toml --out out --certs full", "no certificate file"),
        ("party --rank 0 --config selftest.toml --out old", "already exists"),
        ("dealer --config absent.toml", "cannot read the session file absent.toml"),
        ("report full", "full is not the folder of a finished run: it has no report.json"),
        ("audit verify full", "full is not the folder of a finished run"),
        ("privacy full", "neither a ledger nor a folder with party-K/ledger.jsonl"),
        ("policy show full", "full has no policy_card.json: name a file"),
        ("policy show moon", "no card is shipped for 'moon'"),
        ("policy show", "show needs a card: a file, the folder of a run, or a shipped name"),
        ("policy key", "key needs --key, the new file"),
        ("policy key --key loans.toml", "loans.toml is there already; keys are not written over"),
        ("policy approve german", "only JSON cards are written"),
        ("policy status german --party 0", "--party needs --dataset, the new records"),
        ("policy status german --dataset loans.toml", "name the folder of one"),
        ("policy diff german", "diff needs two cards"),
        ("run --out loans.toml", "cannot use loans.toml: Not a directory"),
        ("run --resume full --epsilon 4", "--epsilon does not go with --resume"),
        ("reproduce main --dataset heart --seeds 1 --out loans.toml", "cannot use loans.toml"),
        ("party --rank -1 --config session.toml --out out", "rank must be from 0 to 1"),
        ("party --rank 0 --config session.toml --out out --threads 0", "--threads must be at least 1"),
        ("party --rank 0 --config session.toml --out out --listen 203.0.113.1:1", "name an address of this host"),
        ("certs made --days 0", "valid for 1 to 36500 days, not 0"),
        ("certs loans.toml", "cannot use loans.toml: File exists"),
        ("certs request certs --member party-x --name bank", "a member is party-0, party-1, ... or dealer"),
        ("certs request certs --place party-0 --name bank --renew", "leave --renew out"),
        ("certs sign loans.toml --authority full", "full holds no authority's key"),
        ("certs install loans.toml loans.toml certs", "loans.toml is not a certificate in PEM form"),
        ("certs show full", "full holds no certificate of a member"),
        ("certs pin session.toml", "name the certificates to pin, or --drop a member"),
        ("certs pin session.toml --drop party-0", "pins no certificate for party-0"),
        ("certs revoke 00 --authority full", "full holds no authority's key"),
        ("plan absent.toml", "cannot read the session file absent.toml"),
        ("plan session.toml --rank 2", "rank must be from 0 to 1, not 2"),
        ("plan session.toml --rows 0", "--rows must be at least 1"),
        ("approve session.toml --certs full --rank 0 --yes", "no certificate file"),
        ("audit log gone", "no folder gone"),
        ("plna session.toml", "no command 'plna'; did you mean plan?"),
        ("certs sing request.pem --authority full", "no command 'sing'; did you mean sign?"),
        ("policy shwo german", "did you mean show?"),
        ("align loans.toml --party bank --align hiden --dry-run", "did you mean hidden?"),
        ("init bank.csv --id cid", "--id: 'bank.csv' has no column 'cid'; did you mean 'id'?"),
        ("approve session.toml --certs full --rank 7 --yes", "rank must be from 0 to 1, not 7: the session has"),
        ("party --rank 7 --config jobs.toml --out full --certs full", "rank must be from 0 to 1, not 7"),
        ("init twice.csv --party x --duplicates first", "twice-unique.csv is there already: use it (sccvfl init"),
        ("init twice.csv --party x --duplicates frist", "did you mean first?"),
        ("init twice.csv --party x", "'1' in rows 1 and 2 (at '2'); keep one record of each id (--duplicates first"),
        ("policy recieve full card.json", "did you mean receive?"),
        ("policy send full --certs full", "full is not the folder of one party's own host"),
        ("policy receive full", "receive needs the folder of the run and the file that another host sent"),
        ("kit session.toml", "session.toml pins no certificates: first `sccvfl certs pin session.toml authority`"),
        ("preflight session.toml --certs full --rank 0", "no certificate file"),
        ("runs full", "no finished run in full: name the folder of a run, or one with runs in it"),
    ],
)
def test_a_command_that_cannot_work(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert message in mistaken(capsys, line)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("loans.toml", 'task = "binary"', "task = ", "loans.toml is not a valid TOML file"),
        ("loans.toml", 'task = "binary"', "", "loans.toml: no 'task'"),
        ("loans.toml", 'file = "bank.csv"', 'file = "gone.csv"', "no file 'gone.csv' next to the description"),
        ("loans.toml", '"amount"', '"sum"', "bank: sum: 'bank.csv' has no column 'sum'; it has amount, late"),
        ("loans.toml", "low = 0", "lowest = 0", "feature 'amount': unknown keys ['lowest']"),
        ("loans.toml", 'id = "id"', 'id = "key"', "'bank.csv' has no id column 'key'; it has id, amount, late"),
        (
            "bank.csv",
            "199,1990",
            "199,99999",
            "bank: amount: 1 value outside the public range 0..50000: 99999 (at '199')",
        ),
        (
            "bank.csv",
            "199,1990",
            "199,",
            "amount: 1 value missing (at '199'); declare `missing = true`",
        ),
        ("bank.csv", "199,1990", "198,1990", "bank: id: 1 value repeated in 'bank.csv': '198' in rows 199 and 200"),
        (
            "session.toml",
            'dataset = "loans.toml"',
            "datset = 1",
            "unknown option 'datset'; did you mean 'dataset'?",
        ),
        ("session.toml", "[options]", "[options", "session.toml is not valid TOML"),
        ("session.toml", '"train"', '"dance"', "no such job: 'dance'; available"),
        ("session.toml", 'dataset = "loans.toml"', 'mode = "open"', "no mode 'open'; available: sealed"),
        ("session.toml", "[options]", '[options]\npooled = "no"', "pooled must be true or false, not 'no'"),
        ("session.toml", "[options]", "[options]\nseed = 1.5", "seed must be a whole number, not 1.5"),
        ("session.toml", "[options]", "[options]\nlambdas = 3", "lambdas must be a list of numbers, not 3"),
        ("session.toml", "job =", 'deadline = "long"\njob =', "deadline must be a number, not 'long'"),
        ("loans.toml", '"binary"', '"ranking"', "unknown task 'ranking'; use binary"),
        ("loans.toml", '"binary"', '"regression"', "loans.toml: label: no 'low'"),
        ("loans.toml", '"loans"', '"../loans"', "must be a plain name"),
        ("loans.toml", '["0", "1"]', '"01"', "label: classes must be a list, not '01'"),
        ("loans.toml", '["0", "1"]', '["0", "1", "2"]', "a binary label needs two classes"),
        ("loans.toml", '["no", "yes"]', '["no"]', "'over_40' needs at least two groups"),
        (
            "loans.toml",
            ', groups = ["no", "yes"]',
            "",
            "protected attribute 'over_40' needs groups = [...]; for a number, public cells = [...], their edges",
        ),
        (
            "loans.toml",
            'groups = ["no", "yes"]',
            "cells = [0, 50]",
            "cells are three public edges or more, which rise",
        ),
        (
            "loans.toml",
            'groups = ["no", "yes"]',
            f"groups = {[str(n) for n in range(21)]}",
            "'over_40' has 21 groups without an order, and at most 20 are possible",
        ),
        ("loans.toml", 'file = "bank.csv"', "", "party 'bank': no 'file'"),
        ("loans.toml", 'kind = "number", ', "", "feature 'amount': no 'kind'"),
        ("loans.toml", "low = 0", 'low = "zero"', "feature 'amount': low must be a number, not 'zero'"),
        ("loans.toml", "low = 0, high = 50000", "edges = []", "amount: edges must be public numbers"),
        ("loans.toml", '"a", "b", "c"]', '"a"], missing = "yes"', "missing must be true or false, not 'yes'"),
        ("loans.toml", '["a", "b", "c"]', '"abc"', "feature 'job': categories must be a list, not 'abc'"),
        ("bank.csv", "5,50,1", '5,"50,1', "or a quote is not closed"),
        ("bank.csv", "id,amount,late", "id,amount,late,amount", "has two columns named 'amount'"),
        ("bank.csv", "\n5,50,1", "\n,50,1", "bank: id: 1 value missing in 'bank.csv' (at '6')"),
        ("bank.csv", "5,50,1", "5,inf,1", "amount: 1 value outside the public range"),
    ],
)
def test_files_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, message: str
) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new, 1))
    assert message in mistaken(capsys, "party --rank 0 --config session.toml --out out")


def test_too_few_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bank.csv", "office.csv"):
        Path(name).write_text("".join(Path(name).read_text().splitlines(keepends=True)[:20]))
    assert "19 records are too few" in mistaken(capsys, "party --rank 0 --config session.toml --out out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'bank.csv' is empty"),
        (b"id,amount,late\n", "'bank.csv' has no records, only a header"),
        (b"id|amount|late\n1|2|0\n", "bank: 'bank.csv' has no id column 'id'; it has id|amount|late"),
        (b"id,amount,late\n1,\xe4,0\n", "'bank.csv' is not text in UTF-8; save it so"),
        # Every row one cell longer than the header: taken as they stand, the columns would be shifted by one.
        (b"id,amount,late\n" + b"".join(b"%d,%d,%d,1\n" % (i, i, i % 2) for i in range(200)), "more cells than"),
    ],
)
def test_tables_that_cannot_be_used(capsys: pytest.CaptureFixture[str], content: bytes, message: str) -> None:
    Path("bank.csv").write_bytes(content)
    assert message in mistaken(capsys, "party --rank 0 --config session.toml --out out")


@pytest.mark.parametrize("name", ["loans.toml", "session.toml"])
def test_files_in_another_encoding(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A byte order mark and the line ends of Windows do no harm; another alphabet is refused."""
    plain = Path(name).read_bytes()
    Path(name).write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    assert "needs certificates" in mistaken(capsys, "party --rank 0 --config session.toml --out out")
    Path(name).write_bytes(b"# \xe4\n" + plain)
    assert f"{name} is not saved as UTF-8" in mistaken(capsys, "party --rank 0 --config session.toml --out out")


def test_a_finished_run_is_not_trained_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run/session.toml").write_text(SESSION)
    Path("run/audit.jsonl").touch()
    assert "run is finished: there is nothing to resume" in mistaken(capsys, "run --resume run")
    assert "run has no transcripts: make a run with --transcript" in mistaken(capsys, "attack run")


def test_a_run_whose_files_are_torn(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run/session.toml").write_text("parties = ")
    assert "session.toml is not valid TOML" in mistaken(capsys, "run --resume run")
    Path("run/report.json").write_text("{")
    assert "report.json cannot be read" in mistaken(capsys, "report run")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], taken: int) -> None:
    assert main(["certs", "certs", "--parties", "2"]) == 0
    capsys.readouterr()
    line = mistaken(
        capsys, f"party --rank 0 --config session.toml --out out --certs certs --listen 127.0.0.1:{taken}"
    )
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in line and "choose another port" in line


def test_a_certificate_that_is_none_and_a_set_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "certs", "--parties", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["made"]
    assert "already holds a set of certificates; choose a new folder" in mistaken(capsys, "certs certs")
    Path("certs/party-0/cert.pem").write_text("not a certificate")
    line = mistaken(capsys, "party --rank 0 --config session.toml --out out --certs certs")
    assert "cannot use the certificate" in line and "make a new set" in line


def test_cards_that_cannot_be_followed(capsys: pytest.CaptureFixture[str]) -> None:
    card = shipped_card("german").to_json()
    card["decisions"]["shoe_size"] = {"role": "M", "reason": "because", "evidence": "some"}
    Path("card.json").write_text(json.dumps(card))
    assert "the policy card names 'shoe_size', which is no column of german" in mistaken(
        capsys, "run --dataset german --card card.json"
    )
    card["decisions"]["shoe_size"]["reason"] = ""
    Path("card.json").write_text(json.dumps(card))
    assert "card.json: every role on a policy card needs a written reason" in mistaken(
        capsys, "policy show card.json"
    )
    card["decisions"]["shoe_size"] = {"role": "M", "reason": "because"}
    Path("card.json").write_text(json.dumps(card))
    assert "no evidence for 'shoe_size' on the policy card for german: role M needs some" in mistaken(
        capsys, "run --dataset german --card card.json"
    )
    Path("odd.json").write_text(json.dumps({**shipped_card("german").to_json(), "proxies": "hide"}))
    assert "odd.json: proxies = 'hide' on a policy card; use guard, edit, drop" in mistaken(
        capsys, "run --card odd.json"
    )
    full = shipped_card("german-full").to_json()
    for decision in full["decisions"].values():
        decision["role"] = "N"
    Path("none.json").write_text(json.dumps(full))
    assert "decides every column and makes none a mediator" in mistaken(
        capsys, "run --dataset german --card none.json"
    )
    Path("plain.json").write_text(json.dumps(shipped_card("german").to_json()))
    line = mistaken(capsys, "policy appeal plain.json --feature age --who me --text no")
    assert "no feature 'age'; it has" in line
    for more, message in (
        ("approve plain.json", "approve needs --as, the owner who approves"),
        ("approve plain.json --as me", "'me' is no owner of the card; it has"),
        ("approve plain.json --as compliance --key gone.pem", "cannot read the key gone.pem"),
        ("review plain.json --who me", "review needs --who and --text"),
        ("review plain.json --who me --text x --feature housing --role N", "a changed role needs evidence"),
        ("review plain.json --who me --text x --feature job --evidence rumour:x", 'evidence is "KIND: text"'),
        ("review plain.json --who me --text x --appeal 1 --because policy", "leave --because out"),
        ("review plain.json --who me --text x --dataset german", "name the folder of one"),
        ("review plain.json --who me --text x --discovery full", "full is not the folder of a finished discovery"),
    ):
        assert message in mistaken(capsys, f"policy {more}")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dataset", "moon", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_pin_of_a_new_member_writes_no_broken_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "certs", "--parties", "3"]) == 0
    capsys.readouterr()
    before = Path("session.toml").read_text()
    line = mistaken(capsys, "certs pin session.toml certs")
    assert "session.toml has no party-2, but party-0, party-1, dealer: first add its address to parties" in line
    assert Path("session.toml").read_text() == before
    description = Path("loans.toml").read_text()
    assert "loans.toml is no session file: it needs parties" in mistaken(capsys, "certs pin loans.toml certs")
    assert Path("loans.toml").read_text() == description
    assert main(["certs", "pin", "session.toml", "certs/party-0/cert.pem"]) == 3
    assert "session.toml is not complete yet" in capsys.readouterr().err
