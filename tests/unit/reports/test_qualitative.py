"""The paper's qualitative analysis for readers: tables, plots and pictures of data that are written out here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.reports.charts import Ranked, number, percent, ranked_chart, scatter
from secure_sccvfl.reports.dictionary import Dictionary
from secure_sccvfl.research.qualitative.results import write_qualitative

WORDS = Dictionary(
    {
        "task": "binary",
        "label": {"classes": ["0", "1"], "labels": ["good | credit", "bad credit"], "low": None, "high": None},
        "protected": [{"name": "s", "groups": ["0", "1"], "labels": ["young", "old"]}],
        "features": {
            "housing": {"meaning": "housing", "unit": "", "labels": {"a": "rents", "b": "owns"}},
            "amount": {"meaning": "", "unit": "DM", "labels": {}},
        },
    }
)


def read(auc: float) -> dict[str, float]:
    return {"auc": auc, "low": auc - 0.1, "high": auc + 0.1, "null": 0.5, "null_high": 0.58}


def said(decision: str, score: float) -> dict[str, Any]:
    return {"decision": decision, "score": score, "logit": 0.0}


def found() -> dict[str, Any]:
    edit = {
        "size": 1.0,
        "size_others": 0.0,
        "moved": [{"feature": "housing", "role": "M", "size": 1.0, "from": "a", "to": "b"}],
        "fixed": ["amount"],
    }
    view = {"width": 3, "shares": [0.5, 0.25], "two": read(0.52), "whole": read(0.75)}
    view |= {"points": [[0.0, 1.0], [1.0, 0.0]], "groups": [0, 1]}
    soft = [{"feature": "housing", "role": "M", "size": 0.12, "from": "a", "to": "a"}]
    methods = {
        "erm_network": {"before": said("0", 0.4), "after": said("1", 0.6)},
        "scc": {"before": said("0", 0.3), "after": said("0", 0.31)}
        | {"own": {"after": said("0", 0.3), **edit, "moved": soft}},
    }
    epochs = [
        {
            "epoch": k,
            "train_loss": 1 / (k + 1),
            "validation_loss": 0.7,
            "validation_accuracy": 0.7,
            "scg": None,
            "fr": 0.0,
        }
        for k in range(5)
    ]
    trial = {"lam": 3.0, "validation": {"loss": 0.5, "gap_rms": 0.1, "spread": 1.0, "flips": None}, "steps": 60}
    return {
        "roles": {"housing": "M", "amount": "N"},
        "scores": {"housing": 0.2, "amount": -0.0001},
        "information": {
            "housing": {"mi": 0.05, "null": 0.002, "null_high": 0.004},
            "amount": {"mi": 0.001, "null": 0.002, "null_high": 0.004},
        },
        "agreement": {"rank_correlation": 1.0, "null_high": 0.9, "columns": 2},
        "groups": ["0", "1"],
        "mixing": [
            {"method": "scc", "space": "fused", **view},
            {"method": "scc", "space": "used", **view, "logits": read(0.5)},
        ],
        "history": {"paper": epochs},
        "trials": [trial],
        "lambda": 3.0,
        "methods": {"erm_network": {"acc": 0.73, "fr_all": 0.1, "fr_null_all": 0.0}, "scc": {"acc": 0.72}},
        "edits": {"scc": {"mediators": 1.2, "others": 0.0, "flips": 0.01, "gap": 0.03}},
        "cases": [
            {"case": "ambiguous", "rule": "nearest 50 %", "id": "g1", "label": "0", "groups": ["1", "0"], **edit}
            | {"methods": methods}
        ],
        "recourse": [{"id": "g2", "groups": ["1", "0"], "before": said("1", 0.7), "after": said("1", 0.69), **edit}],
    }


def test_tables_and_plots(tmp_path: Path) -> None:
    text = write_qualitative(tmp_path, found(), WORDS, "a command")
    assert json.loads((tmp_path / "results.json").read_text())["command"] == "a command"
    assert (tmp_path / "results.md").read_text() == text
    for picture in ("roles", "representations_fused", "representations_used", "training"):
        assert f"({picture}.png)" in text and (tmp_path / f"{picture}.png").stat().st_size > 5000
    assert "| housing | 0.0500 | 0.0020 | 0.0040 | 0.200 | mediator (M) |" in text
    assert "0.520 (0.420 to 0.620); shuffled up to 0.580" in text, "no AUC without its control"
    assert text.count("| flips |") == 1 and "12 % of the way to another value" in text
    assert "good \\| credit" in text, "a name cannot break a table"
    assert "-0.000" not in text and "nan" not in text and "None" not in text


def test_without_curves_there_is_no_picture_of_them(tmp_path: Path) -> None:
    text = write_qualitative(tmp_path, found() | {"history": {}}, WORDS, "a command")
    assert "training.png" not in text and not (tmp_path / "training.png").exists()


def test_pictures_escape_names_and_mark_chance() -> None:
    svg = ranked_chart("t", [Ranked("a <b>", "M", 0.1, 0.02, 0.004), Ranked("c", "N", -0.2, 0.0, 0.004)])
    assert "a &lt;b&gt;" in svg and svg.count('class="control"') == 2 and 'width="-' not in svg
    svg = scatter("t", [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0]], [0, 0, 1], ["x & y", "z"])
    assert svg.count('class="record"') == 3 and "x &amp; y (2)" in svg and "z (1)" in svg
    assert "nan" not in scatter("t", [[1.0, 1.0]], [0], ["x"])


@pytest.mark.parametrize("value", [-0.0, -0.0004])
def test_a_small_negative_number_is_zero(value: float) -> None:
    assert number(value) == "0.000" and percent(value / 10) == "0.0 %"


def test_values_in_words() -> None:
    assert WORDS.value("housing", "a") == "rents" and WORDS.value("amount", "652") == "652 DM"
    assert WORDS.value("amount", "") == "not known" and WORDS.value("amount", "2.3456") == "2.35 DM"
    assert WORDS.name("amount") == "amount" and WORDS.score == "probability of “bad credit”"
