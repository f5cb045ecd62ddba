"""Exports of a finished run, read by other implementations of their formats."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.net.certificates import fingerprint, make_certificates
from secure_sccvfl.reports.exports import Finished, model_card
from secure_sccvfl.reports.results import write
from secure_sccvfl.reports.run_log import record, seal
from tests.multiprocess.named_files import help_of, unnamed
from tests.unit.reports import literal

METRICS = {"acc": 0.75, "fr_kr_all": 0.014, "fr_all": 0.01, "fr_null_kr_all": 0.002, "certified": 0.4, "dp_gap": 0.05}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a finished run and the certificates of its parties."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    finish(tmp_path / "run")
    make_certificates(tmp_path / "certs", 3)
    return tmp_path


def finish(run: Path, **changes: Any) -> str:
    run.mkdir()
    write(run, literal.report(metrics=METRICS, baselines={"majority": {"acc": 0.5}}, **changes))
    (run / "report.html").write_text("<html>")
    (run / "policy_card.json").write_text("{}")
    (run / "share.pt").write_text("a share")
    return seal(run, {})


def encoded(kind: bytes, body: bytes) -> bytes:
    """What a DSSE signature is over, put together by hand from the words of its specification."""
    parts = [b"DSSEv1", str(len(kind)).encode("ascii"), kind, str(len(body)).encode("ascii"), body]
    return b" ".join(parts)


def opened(envelope: dict[str, Any], certificate: bytes) -> dict[str, Any]:
    """The statement in an envelope whose signature fits a certificate; InvalidSignature if it does not."""
    (signature,) = envelope["signatures"]
    key, body = x509.load_pem_x509_certificate(certificate).public_key(), base64.b64decode(envelope["payload"])
    assert isinstance(key, ec.EllipticCurvePublicKey) and signature["keyid"] == fingerprint(certificate)
    signed = encoded(envelope["payloadType"].encode(), body)
    key.verify(base64.b64decode(signature["sig"]), signed, ec.ECDSA(hashes.SHA256()))
    return dict(json.loads(body))


def test_the_statement_has_digests_and_seal_and_anybody_can_verify_it(here: Path) -> None:
    assert main(["export", "intoto", "run", "--certs", "certs", "--rank", "1"]) == 0
    envelope = json.loads((here / "run.intoto.json").read_text())
    statement = opened(envelope, (here / "certs/party-1/cert.pem").read_bytes())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == {
        name: hashlib.sha256((here / "run" / name).read_bytes()).hexdigest()
        for name in ("report.json", "report.html", "policy_card.json")
    }, "of public files alone: a digest of few bits reveals them"
    about, head = statement["predicate"], json.loads((here / "run/audit.head").read_text())["head"]
    assert (about["seal"], about["signer"], about["epsilon"]) == (
        head,
        "party-1",
        literal.report().privacy.epsilon_rdp,
    )


def test_a_changed_statement_or_another_signer_does_not_verify(here: Path) -> None:
    main(["export", "intoto", "run", "--certs", "certs", "--rank", "1"])
    envelope = json.loads((here / "run.intoto.json").read_text())
    certificate = (here / "certs/party-1/cert.pem").read_bytes()
    body = base64.b64decode(envelope["payload"]).replace(b'"party-1"', b'"party-2"')
    for change in ({"payload": base64.b64encode(body).decode()}, {"payloadType": "application/json"}):
        with pytest.raises(InvalidSignature):
            opened({**envelope, **change}, certificate)
    (signature,) = envelope["signatures"]
    other = (here / "certs/party-2/cert.pem").read_bytes()
    with pytest.raises(InvalidSignature):
        opened({**envelope, "signatures": [{**signature, "keyid": fingerprint(other)}]}, other)


def test_the_key_must_be_that_of_the_certificate(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("certs/party-2/key.pem", "certs/party-1/key.pem")
    assert main(["export", "intoto", "run", "--certs", "certs", "--rank", "1"]) == 2
    assert "is not the key of" in capsys.readouterr().err and not (here / "run.intoto.json").exists()


@pytest.mark.parametrize("changed", ["report.json", "report.html", "policy_card.json", "audit.jsonl", "audit.head"])
@pytest.mark.parametrize("form", [["modelcard", "run"], ["intoto", "run", "--certs", "certs", "--rank", "0"]])
def test_what_does_not_fit_the_seal_is_not_exported(
    form: list[str], changed: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here / "run" / changed
    path.write_text(path.read_text().replace("0.75", "0.95") if changed == "report.json" else path.read_text()[:-2])
    assert main(["export", *form]) != 0
    assert changed.partition(".")[0] in capsys.readouterr().err
    assert {one.name for one in here.iterdir()} == {"run", "certs"}


def test_a_page_that_was_made_again_is_exported(here: Path) -> None:
    (here / "run/report.html").write_text("<html> again")
    record(here / "run", "page", {}, [here / "run/report.html"])
    assert main(["export", "modelcard", "run"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["intoto", "run"], "needs --certs FOLDER and --rank N"),
        (["intoto", "run", "--certs", "certs"], "needs --certs FOLDER and --rank N"),
        (["modelcard", "run", "--rank", "1"], "needs --certs FOLDER and --rank N"),
        (["intoto", "run", "--certs", "certs", "--rank", "3"], "--rank 3 is not a party"),
        (["modelcard", "run", "--out", "certs"], "certs is there already"),
        (["modelcard", "certs"], "not the folder of a finished run"),
    ],
)
def test_wrong_use_is_one_line(
    words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err
    assert {one.name for one in here.iterdir()} == {"run", "certs"}


def test_the_model_card_has_figures_with_intervals_epsilon_and_limits(here: Path) -> None:
    assert main(["export", "modelcard", "run"]) == 0
    _, header, text = (here / "MODEL_CARD.md").read_text().split("---\n", 2)
    (index,) = yaml.safe_load(header)["model-index"]
    (result,) = index["results"]
    assert {one["type"]: one["value"] for one in result["metrics"]} == {
        "accuracy": 0.75,
        "fr_kr_all": 0.014,
        "fr_null_kr_all": 0.002,
        "certified": 0.4,
        "dp_gap": 0.05,
    }, "the flip rate that claims rest on, and its permutation baseline"
    report = literal.report()
    low, high = (f"{end:.3f}" for end in _wilson(0.75, report.rows["test"]))
    assert f"| correct decisions | 0.750 | {low} to {high} | 0.500 |" in text
    assert f"Epsilon {report.privacy.epsilon_rdp:.4g} of at most {report.privacy.cap:g}" in text
    assert "tables of s, and NOT the model" in text, "a model that the ledger does not know is not covered"
    assert "## Limits" in text and "dealer must collude with no party" in text and "share.pt" not in text


def test_the_card_says_that_a_private_model_is_covered(tmp_path: Path) -> None:
    finish(tmp_path / "run", privacy=replace(literal.report().privacy, parts={"tables": 4.0, "head": 5.0}))
    finished = Finished.of(tmp_path / "run")
    assert "tables of s, and the model." in model_card(finished) and finished.settings["epsilon_covers_model"]


def _wilson(rate: float, total: int) -> tuple[float, float]:
    z = 1.959964
    middle, square = (rate + z * z / (2 * total)), z * (rate * (1 - rate) / total + z * z / (4 * total**2)) ** 0.5
    return (middle - square) / (1 + z * z / total), (middle + square) / (1 + z * z / total)


def test_names_from_outside_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    evil = "x: [y](https://example.org) <script>\n---\n# z"
    finish(tmp_path / "run", dataset=evil, warnings=(evil,), party_names=(evil, "b", "c"))
    assert main(["export", "modelcard", "run"]) == 0
    _, header, text = (tmp_path / "MODEL_CARD.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["model-index"][0]["results"][0]["dataset"]["name"] == evil.replace("\n", " ")
    assert "<script>" not in text and "[y](" not in text and "\n# z" not in text


def test_exports_import_neither_torch_nor_crypten(here: Path) -> None:
    code = "import sys; from secure_sccvfl.launch.cli import main; code = main(sys.argv[1:]); "
    code += "assert not {'torch', 'crypten'} & set(sys.modules); sys.exit(code)"
    for words in (["modelcard", "run"], ["intoto", "run", "--certs", "certs", "--rank", "0"]):
        subprocess.run([sys.executable, "-c", code, "export", *words], check=True, cwd=here)


@pytest.mark.engines
def test_mlflow_gets_parameters_metrics_and_report_without_network(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")

    def refused(*_: object) -> None:
        raise AssertionError("an export needs no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    before = [*here.iterdir()]
    assert main(["export", "mlflow", "run"]) == 0 == main(["export", "mlflow", "run", "--out", "mlruns"])
    assert unnamed(help_of("export"), {*here.iterdir()} - {*before}) == [], "what is in it is MLflow's"
    from mlflow.tracking import MlflowClient

    client = MlflowClient((here / "mlruns").as_uri())
    experiment = client.get_experiment_by_name(literal.report().dataset)
    first, _ = client.search_runs([experiment.experiment_id])
    assert METRICS.items() >= {k: v for k, v in first.data.metrics.items() if k in METRICS}.items()
    assert first.data.metrics["acc_low"] < 0.75 < first.data.metrics["acc_high"]
    assert first.data.metrics["epsilon"] == literal.report().privacy.epsilon_rdp
    assert first.data.tags["sccvfl.seal"] == json.loads((here / "run/audit.head").read_text())["head"]
    assert {one.path for one in client.list_artifacts(first.info.run_id)} == {
        "report.json",
        "report.html",
        "policy_card.json",
    }
