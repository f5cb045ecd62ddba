"""A consortium of three hosts, each with its own files and key alone: from a killed host to a report at every one."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.accounting.ledger import comparable, read_ledger
from secure_sccvfl.api.runs import Run
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.certificates import Credentials, sign
from secure_sccvfl.protocols.records.chain import HashChain, read_chain
from secure_sccvfl.protocols.session.log_digests import covered
from secure_sccvfl.protocols.session.saving import restore_share, save_share
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.reports.collect import make_host_results, seal_results
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.results import read
from secure_sccvfl.reports.run_log import HEAD, LOG, contents
from secure_sccvfl.reports.signed import (
    DERIVED,
    check_signed,
    committed,
    files_of,
    is_listed,
    job_digests,
    read_digests,
    settings_digest,
)
from secure_sccvfl.reports.verify import RunFiles, check_derived, check_heads, unchecked, verify
from secure_sccvfl.runs.model_files import load_model, save_model
from secure_sccvfl.runs.predict import ELSEWHERE, REFUSED_FILE, UNDECIDED
from tests.multiprocess.members import APPROVED, PLACES, Hosts
from tests.multiprocess.named_files import help_of, unnamed
from tests.support.sessions import LONG

WELL = dict.fromkeys(PLACES, 0)
DIED = -9


def damage(table: Path) -> None:
    """The last record has a cell that cannot be read."""
    *lines, last = table.read_text().splitlines()
    name, _, rest = last.partition(",")
    table.write_text("\n".join([*lines, ",".join([name, "?", *rest.split(",")[1:]])]) + "\n")


def wait_for(path: Path) -> None:
    end = time.monotonic() + LONG
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Train and evaluate; one host is killed in the middle, all go on, and new records are decided."""
    consortium = Hosts(tmp_path_factory.mktemp("hosts"), ("align", "train", "evaluate"))
    damage(consortium.home("party-2") / "new.csv")
    running = {node: consortium.start(node) for node in PLACES}
    wait_for(consortium.out(1) / "train" / "checkpoints" / "2.npz")
    running["party-1"].kill()
    ended = consortium.end(running)
    assert ended["party-1"] == DIED and all(ended.values()), f"{ended}\n{consortium.logs()}"
    assert consortium.run(resume=True) == WELL, consortium.logs()
    assert consortium.run(predict=True) == WELL, consortium.logs()
    return consortium


def test_the_help_of_a_party_names_every_file_at_its_host(hosts: Hosts) -> None:
    for rank in range(3):
        at_home = [path for path in hosts.home(f"party-{rank}").iterdir() if path.suffix not in (".csv", ".toml")]
        made = [path for path in at_home if path.name not in ("certs", "out", "log.txt")]
        assert unnamed(help_of("party"), [*made, *hosts.out(rank).iterdir()]) == []
    made = [path for path in hosts.home("dealer").iterdir() if path.name not in ("certs", "session.toml", "log.txt")]
    assert unnamed(help_of("dealer"), made) == []


@pytest.fixture
def out(hosts: Hosts, tmp_path: Path) -> Path:
    """A copy of one host's folder, to damage; its administrator has the host's key."""
    shutil.copytree(hosts.out(1), tmp_path / "out")
    return tmp_path / "out"


def key(hosts: Hosts) -> Credentials:
    return Credentials.of(hosts.home("party-1") / "certs", "party-1")


def without_stopped(report: dict[str, Any]) -> dict[str, Any]:
    """A report but for how often things were opened: the host that was killed may lack the last line before it."""
    releases = [{k: v for k, v in one.items() if k != "times"} for one in report["releases"]]
    privacy = {k: v for k, v in report["privacy"].items() if k != "uncharged"}
    return {**report, "releases": releases, "privacy": privacy}


def test_every_host_has_a_report_that_fits_together(hosts: Hosts) -> None:
    reports = []
    for rank in range(3):
        out = hosts.out(rank)
        assert {name: lines for name, lines in verify(out).items() if lines} == {}
        reports.append(json.loads((out / "report.json").read_text()))
        assert reports[-1]["host"] == rank and list(reports[-1]["models"]) == [f"party-{rank}"]
        assert reports[-1]["approvals"] == list(APPROVED)
        page = (out / "report.html").read_text()
        assert f"on the host of {reports[-1]['party_names'][rank]}" in page
        assert (out / "policy_card.md").exists() and (out / "privacy_budget.html").exists()
        assert not {p.name for p in out.rglob("*")} & {"key.pem", "records.key"}
    local_keys = ("models", "cost", "host")
    public = [without_stopped({k: v for k, v in report.items() if k not in local_keys}) for report in reports]
    assert public[0] == public[1] == public[2], "all see the same figures"
    assert "acc" in reports[0]["metrics"] and not reports[0]["judges"]
    assert set(reports[0]["baselines"]) == {"majority"}, "told with noise, and nothing was pooled"
    assert sum(r["times"] for r in reports[0]["releases"] if r["name"] == "evaluation") == 1


def test_it_went_on_from_the_checkpoint_and_paid_once(hosts: Hosts) -> None:
    trained = hosts.out(0) / "train"
    audit = [e["event"] for e in read_chain(sorted(trained.glob("audit*.jsonl"))[0])]
    assert "resumed" in audit or (trained / "audit-1.jsonl").exists() or (hosts.out(0) / "train-1").exists()
    ledger = read_ledger(trained / "ledger.jsonl")[0]
    charged = [line["event"]["name"] for line in ledger if "event" in line]
    assert charged == ["first count", "sketch-0", "sketch-1", "head", "head output"], "each was paid for once"


def read_rows(table: Path) -> dict[str, dict[str, str]]:
    with table.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_each_host_charged_its_own_records_and_an_alignment_reported_sizes(hosts: Hosts) -> None:
    folders = [hosts.out(rank) for rank in range(3)]
    for name in ("train/ledger.jsonl", "evaluate/evaluation.jsonl"):
        ledgers = [read_ledger(folder / name)[0] for folder in folders]
        assert len({line["event"]["records"] for lines in ledgers for line in lines if "event" in line}) == 3
        assert all(
            comparable(lines, own_records=True) == comparable(ledgers[0], own_records=True) for lines in ledgers
        )
    results = [json.loads((folder / "align" / "result.json").read_text()) for folder in folders]
    assert [one["own records"]["all"] for one in results] == [238, 237, 239]
    assert all(one["align"] == "hidden" and one["places"] == results[0]["places"] for one in results)


def test_only_the_receiver_has_the_predictions(hosts: Hosts) -> None:
    assert [(hosts.out(rank) / "predict" / "predictions.csv").exists() for rank in range(3)] == [True, False, False]
    new = [read_rows(hosts.home(f"party-{rank}") / "new.csv") for rank in range(3)]
    predictions = read_rows(hosts.out(0) / "predict" / "predictions.csv")
    *_, refused = new[2]
    assert list(predictions) == sorted(new[0].keys() - {refused}), (
        "the receiver's own, but for one that a party cannot read"
    )
    undecided = {name for name, row in predictions.items() if row["decision"] == UNDECIDED}
    assert undecided == new[0].keys() - (new[1].keys() & new[2].keys()) and len(undecided) == 4
    reasons = [read_rows(hosts.out(rank) / "predict" / REFUSED_FILE) for rank in (0, 2)]
    assert [list(rows) for rows in reasons] == [[refused], [refused]]
    assert [rows[refused]["why"] == ELSEWHERE for rows in reasons] == [True, False]
    assert not (hosts.out(1) / "predict" / REFUSED_FILE).exists(), "nobody else learns of it"
    assert [e["event"] for e in read_chain(hosts.out(2) / LOG)] == ["finished", "predict"]


def test_programs_work_on_a_hosts_folder_and_reading_changes_nothing(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(hosts.home("party-1"))
    before = {path: path.read_bytes() for path in contents(Path("out"))}
    log = Path("out", LOG).read_bytes()
    checked = ["audit", "verify", "out", "--certs", "certs", "--config", "session.toml"]
    for command in (checked, ["audit", "log", "out"], ["privacy", "out"], ["policy", "show", "out"]):
        assert main(command) == 0, command
    assert main(["policy", "status", "out", "--dataset", "own.toml", "--party", "1"]) == 0
    assert main(["privacy", "out/train/ledger.jsonl"]) == 0
    output = capsys.readouterr().out
    assert (
        "signatures, recomputed, session file fit together" in output
        and "seal " in output
        and "epsilon 8.0" in output
    )
    first = Path("clinic.csv").read_text().splitlines()[1].partition(",")[0]
    assert main(["explain", "out", "--record", first]) == 0 and "clinic" in capsys.readouterr().out
    assert main(["report", "out"]) == 0 and "is up to date" in capsys.readouterr().out
    run = Run.open("out")
    assert "signatures" in run.verify() and run.report.host == 1
    for refused, why in (
        (["predict", "--model", "out", "--records", "new.csv"], "run_party.py predict"),
        (["run", "--resume", "out"], "run_party.py --resume"),
        (["attack", "out"], "attacks need what every process saw"),
        (["explain", "out", "--record", first, "--party", "0"], "party 0 explains what it holds itself"),
        (["policy", "review", "out", "--who", "x", "--text", "y", "--dataset", "own.toml"], "with --discovery"),
    ):
        assert main(refused) == 2, refused
        assert why in capsys.readouterr().err
    with pytest.raises(ProtocolError, match="run_party"):
        run.predict(run.metrics)
    assert {path: path.read_bytes() for path in contents(Path("out"))} == before
    assert Path("out", LOG).read_bytes() == log


def test_an_appeal_keeps_the_seals_verifiable(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seals = [entry["hash"] for entry in read_chain(out / LOG)]
    said = ["--who", "a patient", "--text", "no choice of mine"]
    assert main(["policy", "appeal", str(out), "--feature", "age", *said]) == 0
    new = capsys.readouterr().err.splitlines()[0].rpartition(" ")[2]
    assert new == read_chain(out / LOG)[-1]["hash"]
    assert unchecked(out, new[:16]) == [], "nothing came since the new one"
    assert main(["audit", "verify", str(out), "--seal", seals[0]]) == 0
    assert "since this seal: predict (" in (output := capsys.readouterr().out) and "appeal (" in output
    seal_results(out, read(out))
    assert verify(out, seals[0])["seal"] == ["the run was finished again after this seal"]
    (out / LOG).unlink()
    (out / HEAD).unlink()
    seal_results(out, read(out))
    lines = list(check_heads(RunFiles(out)))
    assert lines == ["audit.jsonl is not the log that all parties signed at the end of predict"], "a log begun anew"


def changed(path: Path) -> None:
    """One byte, or one character, is another."""
    content = bytearray(path.read_bytes())
    if not content:
        content = bytearray(b"x")
    middle = len(content) // 2
    content[middle] = ord("7") if content[middle] != ord("7") else ord("8")
    path.write_bytes(bytes(content))


def test_any_changed_file_is_named_even_if_the_log_and_the_seal_are_rebuilt(hosts: Hosts, out: Path) -> None:
    """Every file of the jobs, one after the other; the run's own log hides nothing."""
    config = hosts.config
    report = read(out)
    listed = [path for path in contents(out) if is_listed(path.relative_to(out).as_posix())]
    assert len(listed) > 25
    for path in listed:
        kept, name = path.read_bytes(), path.relative_to(out).as_posix()
        changed(path)
        assert any(name in line for line in signature_lines(out, config)), name
        path.write_bytes(kept)
        path.rename(hidden := out.parent / "hidden")
        assert any(name in line for line in signature_lines(out, config)), f"{name} is gone"
        hidden.rename(path)
    (out / "train" / "more.txt").touch()
    assert signature_lines(out, config) == ["train/more.txt is in no statement that all parties signed"]
    (out / "train" / "more.txt").unlink()
    assert signature_lines(out, config) == []
    derived = [path for path in contents(out) if DERIVED.fullmatch(path.relative_to(out).as_posix())]
    derived.remove(page := out / "report.html")
    assert page.exists() and {path.name for path in derived} >= {"report.json", "policy_card.json", "session.toml"}
    for path in derived:
        path.write_text(path.read_text() + " ")  # readable still
    page.write_text(page.read_text().replace("Who learned what", "Nobody learned a thing"))
    (more := out / "privacy_budget.txt").write_text("epsilon 0.1")
    seal_results(out, report)
    lines = list(check_derived(RunFiles(out)))
    assert all(any(line.startswith(path.name) for line in lines) for path in (page, more, *derived)), lines


def signature_lines(out: Path, config: SessionConfig) -> list[str]:
    """What the statements show."""
    return list(check_signed(out, config))


def rechained(path: Path, keep: Iterator[Mapping[str, Any]]) -> None:
    """A log with these lines, in a chain that holds."""
    lines = [{k: v for k, v in line.items() if k not in ("index", "previous", "hash")} for line in keep]
    path.unlink()
    HashChain(path).extend(lines)


def drop_a_release(out: Path) -> None:
    rechained(out / "evaluate" / "releases.jsonl", iter(read_chain(out / "evaluate" / "releases.jsonl")[:-1]))


def change_a_decision(out: Path) -> None:
    last = sorted((out / "train").glob("audit*.jsonl"))[-1]
    rechained(last, iter([{**line, "note": "better"} for line in read_chain(last)]))


def change_a_figure(out: Path) -> None:
    path = out / "evaluate" / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["acc"] = 0.99
    path.write_text(json.dumps(result, indent=1) + "\n")


def change_the_model(out: Path) -> None:
    folder = out / "train" / "model"
    model = load_model(folder, Layout.of(RunFolder.of(out).options().schema(3).features[1]))
    save_model(replace(model, weight=restore_share(save_share(model.weight) + 1, HEAD_BITS)), folder)


@pytest.mark.parametrize("damage", [drop_a_release, change_a_decision, change_a_figure, change_the_model])
def test_a_folder_that_is_rewritten_consistently_does_not_fit_the_others_signatures(
    hosts: Hosts, out: Path, damage: Any
) -> None:
    """Its administrator makes heads, own signature, report, log and seal anew. The others' signatures remain."""
    damage(out)
    for job in ("train", "evaluate", "predict"):
        folder = out / job
        kept = read_digests(folder)
        own_heads = kept["statement"]["heads"]["party-1"]
        own_heads |= job_digests(folder, job)
        kept["files"] = {k: v for k, v in files_of(out).items() if k in kept["files"]}
        own_heads["files"] = committed(kept["salt"], kept["files"])
        signature = sign(key(hosts), "heads", covered(kept["statement"]))
        kept["signatures"]["party-1"]["signature"] = signature
        (folder / "heads.json").write_text(json.dumps(kept, indent=1) + "\n")
    (out / LOG).unlink()
    (out / HEAD).unlink()
    seal_results(out, make_host_results(out))
    lines = list(check_heads(RunFiles(out)))
    for party in ("party-0", "party-2"):
        assert any(f"{party} has signed other digests" in line for line in lines), lines


def test_a_consortium_that_was_made_up_is_no_consortium_to_who_knows_the_real_one(
    hosts: Hosts, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The authority, or the session file that a reader has, decides whose signatures count."""
    other = out.parent / "other"
    assert main(["certs", str(other), "--parties", "3"]) == 0
    session_text = (hosts.home("party-1") / "session.toml").read_text().replace("127.0.0.2", "127.0.0.9")
    (out.parent / "session.toml").write_text(session_text)
    reference = ["--certs", str(other), "--config", str(out.parent / "session.toml")]
    assert main(["audit", "verify", str(out), *reference]) == 3
    shown = capsys.readouterr()
    assert "by a certificate of another authority" in shown.out and "session.toml is not" in shown.err


def test_a_session_file_without_certificates_does_not_do_away_with_signatures(hosts: Hosts, out: Path) -> None:
    """An administrator who writes `transport = "gloo"` makes every statement alone; all of it fits."""
    change_a_figure(out)
    shutil.rmtree(out / "predict")
    config = replace(hosts.config, transport="gloo", certificates={}, approval="")
    (out / "session.toml").write_text(config.to_toml())
    for job in config.jobs:
        kept = read_digests(out / job)
        kept["statement"]["session"], kept["signatures"] = settings_digest(config), {}
        for heads in kept["statement"]["heads"].values():
            heads |= job_digests(out / job, job)
        kept["files"] = {k: v for k, v in files_of(out).items() if k in kept["files"]}
        kept["statement"]["heads"]["party-1"]["files"] = committed(kept["salt"], kept["files"])
        (out / job / "heads.json").write_text(json.dumps(kept, indent=1) + "\n")
    (out / LOG).unlink()
    (out / HEAD).unlink()
    seal_results(out, make_host_results(out))
    authority = key(hosts).authority.read_bytes()
    assert unchecked(out) == ["the transport gloo has no certificates: nothing is signed"]
    lines = list(check_heads(RunFiles(out, authority)))
    assert {f"{job}/heads.json: party-{k} has not signed" for job in config.jobs for k in range(3)} == set(lines)


def test_lists_of_digests_are_for_the_owner_alone(hosts: Hosts) -> None:
    """From the digest of a few decisions, or of who was refused, others on this host could find them by trying."""
    for rank in range(3):
        listed = [path for path in contents(hosts.out(rank)) if path.name in ("heads.json", LOG)]
        assert len(listed) >= 4 and not any(
            path.stat().st_mode & 0o077 for path in listed if path.parent != hosts.out(rank)
        )
        assert not (hosts.out(rank) / LOG).stat().st_mode & 0o077


def test_no_head_is_the_hash_of_a_line_that_others_could_try_words_against(hosts: Hosts) -> None:
    """Whoever knows an earlier seal could try the words of an appeal, or who was refused."""
    for rank in range(3):
        heads = json.dumps(read_digests(hosts.out(0) / "predict")["statement"]["heads"][f"party-{rank}"])
        lines = [entry["hash"] for entry in read_chain(hosts.out(rank) / LOG)]
        assert '"log": "' in heads and '"log": ""' not in heads and not any(line in heads for line in lines)


def test_a_report_that_was_not_made_can_be_made_later(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host that was stopped after the last session needs nobody else."""
    derived = [path for path in contents(out) if DERIVED.fullmatch(path.name) and path.name != "session.toml"]
    before = {path.name: path.read_bytes() for path in derived}
    for path in derived:
        path.unlink()
    (out / LOG).unlink()
    (out / HEAD).unlink()
    shutil.rmtree(out / "predict")
    assert main(["report", str(out)]) == 0 and "seal" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in derived} == before
    assert [*check_heads(RunFiles(out)), *check_derived(RunFiles(out))] == []
