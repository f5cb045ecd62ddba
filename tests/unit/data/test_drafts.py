"""Drafts from a party's own table, merged without anybody's data, and the check of a file against the description."""

from __future__ import annotations

import doctest
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secure_sccvfl.data.drafts as drafts_module
from secure_sccvfl.api.frames import to_frames
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.checks import check
from secure_sccvfl.data.drafts import (
    FLOOR,
    OTHER,
    code_edges,
    draft_of,
    guess,
    merged,
    public_dates,
    public_edges,
    public_range,
    read_draft,
)
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.files import description_text
from secure_sccvfl.data.id_shapes import AS_THEY_ARE, IdShape, check_shapes
from secure_sccvfl.data.party_data import own_part, own_schema
from secure_sccvfl.launch.cli import main
from secure_sccvfl.runs.predict import decision_lines, read_new_records

REAL = ("german", "heart", "compas", "acs12")


def write_parties(name: str, folder: Path) -> dict[str, list[str]]:
    """An embedded data set as CSV files of its parties, and what each says to `sccvfl init`."""
    data = load(name)
    commands = {}
    for party, frame in to_frames(data).items():
        frame.to_csv(folder / f"{party}.csv", index=False)
        protected = [a.name for a in data.protected if a.holder == party]
        commands[party] = [
            "init",
            f"{party}.csv",
            "--party",
            party,
            *(w for n in protected for w in ("--protected", n)),
        ]
        commands[party] += ["--label", "y"] if party == data.label.holder else []
    return commands


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    return tmp_path


@pytest.mark.parametrize("name", REAL)
@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
def test_drafts_of_real_tables_are_a_description_that_needs_no_change(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    parties = write_parties(name, here)
    assert [main(words) for words in parties.values()] == [0] * len(parties)
    drafts = [f"draft-{party}.toml" for party in parties]
    assert main(["init", "--merge", *drafts, "--name", name, "--session", "session.toml"]) == 0
    session = load_session(here / "session.toml")
    assert session.names == tuple(parties) and session.jobs == ("selftest", "train", "evaluate")
    assert session.options == {"dataset": f"{name}.toml"}
    for party in parties:
        assert main(["check", f"{name}.toml", "--party", party]) == 0
    assert "problem:" not in capsys.readouterr().err
    schema, data = own_schema(here / f"{name}.toml"), load(name)
    used = {f.name for columns in schema.features for f in columns}
    assert used <= {f.name for f in data.features} and len(used) >= len(data.features) - 1
    assert [len(own_part(here / f"{name}.toml", rank, 0).ids) for rank in range(len(parties))] == [data.n] * len(
        parties
    )
    for rank, party in enumerate(parties):
        told_nothing_exact(schema.features[rank], pd.read_csv(here / f"{party}.csv", dtype="string"))


def told_nothing_exact(features: tuple[Feature, ...], table: pd.DataFrame) -> None:
    """No bound is the least or largest value (except 0), and no category is rare."""
    for feature in features:
        text = table[feature.name].str.strip().str.removesuffix(".0")
        if feature.kind == "category":
            counts = text.value_counts()
            assert all(counts[value] >= FLOOR for value in feature.categories if value != OTHER), feature.name
        else:
            values = feature.read(table[feature.name])
            assert feature.high > np.nanmax(values), feature.name
            assert feature.low < np.nanmin(values) or feature.low == 0 <= np.nanmin(values), feature.name


@given(st.lists(st.floats(-1e9, 1e9).map(lambda x: round(x, 3)), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_range_lies_around_the_values_and_is_none_of_them(values: list[float]) -> None:
    low, high = public_range(np.array(values))
    assert low < min(values) or low == 0 == max(0, -min(values))
    assert high > max(values) or high == 0 == max(0, max(values))
    assert low < high and float(f"{high:.3g}") == high and float(f"{low:.3g}") == low, "friendly: few digits"


def test_the_examples_of_ranges() -> None:
    assert doctest.testmod(drafts_module).failed == 0 and doctest.testmod(drafts_module).attempted >= 5


def test_edges_and_dates_are_public_parts_of_the_range() -> None:
    assert public_edges(np.linspace(0, 100, 50), 0, 100) == []
    assert public_edges(np.geomspace(1, 20000, 50), 0, 20000) == [0, 1000, 2000, 4000, 10000, 20000]
    assert code_edges(0, 100) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    for first, last in (("2020-01-01", "2020-01-31"), ("2000-01-01", "2009-12-31"), ("1930-01-01", "2019-12-31")):
        low, high, _ = public_dates(pd.Timestamp(first).date(), pd.Timestamp(last).date())
        assert str(low) < first and str(high) > last and (low.day, high.day) == (1, 1)


N = 60
COLUMNS: dict[str, tuple[list[str], dict[str, Any] | None]] = {
    "whole numbers": ([str(20 + i % 40) for i in range(N)], {"kind": "number", "low": 15, "high": 60}),
    "few whole numbers": ([str(i % 3) for i in range(N)], {"kind": "category", "categories": ["0", "1", "2"]}),
    "few, one rare": ([str(i % 3) for i in range(N - 1)] + ["9"], {"kind": "number", "low": 0, "high": 10}),
    "words": (["no", "yes"] * 30, {"kind": "category", "categories": ["no", "yes"]}),
    "a rare word": (["no", "yes"] * 29 + ["no", "pope"], {"categories": ["no", "yes", "other"], "other": "other"}),
    "codes": ([f"0{i}" for i in range(100, 100 + N)], {"kind": "code", "low": 90}),
    "decimal commas": ([f"{i},5" for i in range(N)], {"kind": "number", "low": 0, "decimal": ","}),
    "thousands": ([f"{i}.500,25" for i in range(1, N + 1)], {"decimal": ",", "thousands": ".", "high": 70000}),
    "english thousands": ([f"{i},500.25" for i in range(1, N + 1)], {"thousands": ",", "decimal": "."}),
    "dates": ([f"2020-03-{1 + i % 30:02d}" for i in range(N)], {"kind": "date", "low": "2020-02-01", "unit": "days"}),
    "german dates": ([f"{1 + i % 28}.12.{1950 + i}" for i in range(N)], {"format": "%d.%m.%Y", "unit": "years"}),
    "gaps": ([str(i) for i in range(100, 100 + N - 5)] + [""] * 5, None),
    "missing": ([str(i * 3) for i in range(N - 5)] + [""] * 5, {"kind": "number", "missing": True}),
    "marks": ([str(i * 3) for i in range(N - 5)] + ["?"] * 3 + ["N/A"] * 2, {"na": ["?", "N/A"], "missing": True}),
    "sentinels": ([str(i * 3) for i in range(N - 12)] + ["-9"] * 6 + ["-99"] * 6, {"na": ["-9", "-99"], "low": 0}),
    "rare sentinel": ([str(i * 3) for i in range(N - 1)] + ["-9"], {"low": -20}),
    "one typing error": ([str(i * 3) for i in range(N - 1)] + ["x"], {"kind": "number", "low": 0}),
    "free text": ([f"called {i} times" for i in range(N)], None),
    "an identifier": ([str(1000 + i) for i in range(N)], None),
    "one value": (["1"] * N, None),
    "one word": (["a"] * N, None),
    "empty": ([""] * N, None),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_what_a_column_is_taken_for(name: str) -> None:
    cells, wanted = COLUMNS[name]
    guessed = guess("x", pd.Series(cells, dtype="string"))
    if wanted is None:
        assert guessed.entry is None and len(guessed.notes) == 1
        return
    assert guessed.entry is not None
    described = {**guessed.entry, "decimal": guessed.cells.decimal, "thousands": guessed.cells.thousands}
    assert {key: described.get(key) for key in wanted} == wanted
    assert "pope" not in str(guessed.entry)


def test_a_lone_value_below_zero_is_asked_about() -> None:
    guessed = guess("x", pd.Series(["-1", *(str(i * 3) for i in range(N))], dtype="string"))
    assert guessed.notes == ("-1 is the only value below 0: is it a mark of gaps? Then declare it in `na`",)


def test_an_outlier_and_a_crowded_bin_are_noted() -> None:
    usual = [str(i * 3) for i in range(N)]
    assert guess("x", pd.Series(usual, dtype="string")).notes == ()
    guessed = guess("x", pd.Series(["999999.375", *usual], dtype="string"))
    assert guessed.notes == (
        "999999.375 is far above all else: is it a mark of gaps? Then declare it in `na`",
        "nearly all values lie in its lowest bin: write edges that part them",
    )
    assert "999999" not in str(guessed.entry)


def test_a_draft_says_who_must_approve_it_and_holds_nothing_rare(here: Path) -> None:
    rows = range(100)
    cells = {
        "Customer_ID": [f"c{i}" for i in rows],
        "job": ["clerk", "nurse"] * 49 + ["astronaut", "pope"],
        "income": [f"{i * 11},5" for i in rows],
        "late": ["yes" if i % 3 else "no" for i in rows],
    }
    pd.DataFrame(cells).to_csv("bank.csv", index=False, sep=";")
    draft = draft_of(Path("bank.csv"), "bank", label="late")
    text = draft.text()
    assert "EVERYTHING IN THIS FILE BECOMES PUBLIC" in text and "approve" in text
    for secret in ("astronaut", "pope", "1089", "c17"):
        assert secret not in text
    parsed = tomllib.loads(text)
    assert (parsed["id"], parsed["decimal"], parsed["task"]) == ("Customer_ID", ",", "binary")
    assert parsed["label"] == {"column": "late", "classes": ["no", "yes"], "meaning": ""}
    ((column, note),) = draft.notes
    assert column == "job" and note.startswith("2 values in fewer than 5 records each (2 in all) read as 'other'")
    assert draft_of(Path("bank.csv"), "bank", label="income").task == "regression"


def drafts(folder: Path) -> list[dict[str, Any]]:
    rows = range(40)
    tables = {
        "bank": {"id": [f"c{i}" for i in rows], "late": ["0", "1"] * 20, "amount": [i * 7 for i in rows]},
        "office": {"id": [f"c{i}" for i in rows], "old": ["no", "no", "yes", "yes"] * 10, "job": ["a", "b"] * 20},
    }
    parsed = []
    for party, table in tables.items():
        pd.DataFrame(table).to_csv(folder / f"{party}.csv", index=False)
        options: dict[str, Any] = {"label": "late"} if party == "bank" else {"protected": ["old"]}
        (folder / f"draft-{party}.toml").write_text(draft_of(folder / f"{party}.csv", party, **options).text())
        parsed.append(read_draft(folder / f"draft-{party}.toml"))
    return parsed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bank, office: office.update(party="bank"), "two parties or more, each once, not of bank, bank"),
        (lambda bank, office: office.update(id="job"), "party 'office': column 'job' is the id"),
        (lambda bank, office: bank.pop("label"), "one party must have the label"),
        (lambda bank, office: office.update(label=bank["label"]), "one party must have the label"),
        (lambda bank, office: office.pop("protected"), "no draft has a protected attribute"),
        (
            lambda bank, office: office["features"][0].update(name="amount"),
            "'amount' is named by 'bank' and 'office'",
        ),
        (lambda bank, office: office["features"][0].update(name="late"), "column 'late' of bank is the label"),
        (lambda bank, office: office["features"][0].update(kind="text"), "office: job: unknown kind 'text'"),
    ],
)
def test_drafts_that_do_not_fit_together(tmp_path: Path, change: Any, message: str) -> None:
    both = drafts(tmp_path)
    assert own_schema(written(tmp_path, merged(both, "loans"))).parties == ("bank", "office")
    change(*both)
    with pytest.raises(DataError) as error:
        merged(both, "loans")
    assert message in str(error.value)


def written(folder: Path, spec: dict[str, Any]) -> Path:
    path = folder / "loans.toml"
    path.write_text(description_text(spec))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("init", "name your file, or the drafts to --merge"),
        ("init gone.csv", "gone: no file 'gone.csv'"),
        ("init bank.csv --label early", "bank: --label: 'bank.csv' has no column 'early'; it has id, late, amount"),
        ("init bank.csv --label amount --party a/b", "--party 'a/b' must be a plain name"),
        ("init bank.csv --name loans", "--name goes with --merge"),
        ("init bank.csv --out loans.toml", "loans.toml is there already; remove it"),
        ("init --merge draft-bank.toml draft-office.toml", "--merge needs --name"),
        ("init --merge draft-bank.toml bank.csv --name x", "bank.csv is not a valid TOML file"),
        ("init --merge draft-bank.toml loans.toml --name x", "loans.toml: no 'party'"),
        ("init --merge draft-bank.toml draft-office.toml --name x --address y", "--address goes with --session"),
        (
            "init --merge draft-bank.toml draft-office.toml --name x --session s.toml --address shop=a:1",
            "--address names shop, which is no party; available: bank, office",
        ),
        ("check loans.toml --party shop", "loans.toml has no party 'shop'; available: bank, office"),
        ("check loans.toml --party bank --file gone.csv", "name another one with --file"),
        ("check gone.toml --party bank", "cannot read the description gone.toml"),
    ],
)
def test_mistakes_in_one_line(here: Path, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    written(here, merged(drafts(here), "loans"))
    assert main(line.split()) == 2
    shown = capsys.readouterr().err
    assert message in shown and len(shown.splitlines()) == 1


DESCRIPTION = """
name = "loans"
task = "binary"
id = "id"
label = { party = "bank", column = "late", classes = ["0", "1"] }
protected = [ { party = "bank", column = "old", groups = ["no", "yes", "never"] } ]
[parties.bank]
file = "bank.csv"
features = [
  { name = "amount", kind = "number", low = 0, high = 100 },
  { name = "rate", kind = "number", low = 0, high = 10 },
  { name = "since", kind = "date", low = "2000-01-01", high = "2030-01-01" },
  { name = "job", kind = "category", categories = ["a", "b"] },
  { name = "gone", kind = "number", low = 0, high = 1 },
  { name = "still", kind = "number", low = 0, high = 1 },
  { name = "number", kind = "number", low = 0, high = 1000 },
  { name = "age", kind = "number", low = 0, high = 1000 },
  { name = "town", kind = "category", categories = ["x", "other"], other = "other" },
]
[parties.other]
file = "other.csv"
features = [ { name = "z", kind = "number", low = 0, high = 1 } ]
"""


def test_check_lists_every_kind_of_problem_at_once_and_what_to_write(here: Path) -> None:
    rows = range(100)
    cells = {
        "id": [f"p{99 - i:02d}" for i in rows],
        "amount": ["", "-5", "x" * 5000, *(str(i) for i in range(3, 99)), "1011"],
        "rate": [f"{i % 10},5" for i in rows],
        "since": ["2001-01-01"] * 98 + ["soon", "1999-01-01"],
        "job": ["a", "b"] * 46 + ["c"] * 6 + ["d", ""],
        "still": ["1"] * 100,
        "number": [str(i) for i in rows],
        "age": [str(30 + 20 * (i % 2) + i % 7) for i in rows],
        "town": ["x"] * 97 + ["y", "z", "w"],
        "late": ["0", "1", "1"] * 33 + ["2"],
        "old": ["no", "yes"] * 50,
        "spare": ["s"] * 100,
    }
    table = pd.DataFrame(cells)
    table.loc[7, "id"] = table.loc[6, "id"]
    table.loc[8, "id"] = ""
    table.to_csv("bank.csv", index=False)
    Path("loans.toml").write_text(DESCRIPTION)
    report = check(Path("loans.toml"), "bank")
    seen = {(p.column, p.what.split(":")[0]): p for p in report.problems}
    lines = {
        ("id", "1 value missing in 'bank.csv'"): ((9,), "give every record its own id"),
        ("id", "1 value repeated in 'bank.csv'"): ((8,), "keep one record of each id"),
        ("amount", "1 value missing"): ((1,), "write `missing = true`"),
        ("amount", "1 value not a number"): ((3,), "declare `decimal` and `thousands` marks"),
        ("amount", "2 values outside the public range 0..100"): ((2, 100), "write `low = -200, high = 1200` if that"),
        ("rate", "100 values not a number"): ((1, 2, 3), 'write `decimal = ",", thousands = ""`'),
        ("since", "1 value not a date in the format %Y-%m-%d"): ((99,), "declare another `format = ...`"),
        ("since", "1 value outside the public range 2000-01-01..2030-01-01"): ((100,), "widen `low` and `high`"),
        ("job", "7 values not in the public dictionary"): (
            (93, 94, 95),
            'write `categories = ["a", "b", "c", "other"], other = "other"` (tells no rare value)',
        ),
        ("job", "1 value missing"): ((100,), "write `missing = true`"),
        ("gone", "'bank.csv' has no column 'gone'"): ((), "it has amount, rate"),
        ("late", "1 value not among ['0', '1'] of the label"): ((100,), "leave such records out"),
    }
    assert seen.keys() == lines.keys()
    for key, (numbers, todo) in lines.items():
        assert seen[key].rows == numbers and seen[key].todo.startswith(todo), seen[key]
    assert seen["amount", "1 value missing"].place == "loans.toml:10" and seen["amount", "1 value missing"].ids == (
        "p99",
    )
    assert max(len(line) for p in report.problems for line in p.lines()) < 400
    assert report.warnings == (
        "still: all records have one value; the column carries nothing",
        "number: every record has its own value; is it an identifier? Then leave it out",
        "age: nearly a copy of 'old', which is protected (AUC 1.000); leave it out?",
        "town: 3 cells with values that are not listed read as other",
        "old: no record of ['never']; what is released of it is noise",
        "not used: spare",
    )


def test_what_check_says_to_write_makes_the_file_readable(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every suggestion of one check, written as it stands; the next check finds nothing."""
    both = drafts(here)
    path = written(here, merged(both, "loans"))
    table = pd.read_csv("bank.csv", dtype=str)
    table.loc[:4, "amount"] = ["-3", "4000", "-9", "-9", "-9"]
    table.to_csv("new.csv", index=False)
    office = pd.read_csv("office.csv", dtype=str)
    office.loc[:7, "job"] = ["c"] * 7 + ["d"]
    office.to_csv("other.csv", index=False)
    for party, file in (("bank", "new.csv"), ("office", "other.csv")):
        assert main(["check", "loans.toml", "--party", party, "--file", file, "--json"]) == 2
        for problem in json.loads(capsys.readouterr().out)["problems"]:
            number = int(problem["place"].split(":")[1]) - 1
            text = path.read_text().splitlines()
            (entry,) = tomllib.loads("x = [\n" + text[number] + "\n]")["x"]
            entry |= tomllib.loads("x = { " + problem["todo"].split("`")[1] + " }")["x"]
            text[number] = "  { " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()) + " },"
            path.write_text("\n".join(text))
        assert main(["check", "loans.toml", "--party", party, "--file", file]) == 0
        assert "no problem" in capsys.readouterr().out


IDS = {
    "padded": [f"{i:06d}" for i in range(900, 1100)],
    "plain": [str(i) for i in range(900, 1100)],
    "small": [str(i) for i in range(100)],
    "wide": [str(i) for i in range(2000)],
    "upper": [f"AB{i}" for i in range(900, 1100)],
    "lower": [f"ab{i}" for i in range(900, 1100)],
    "long": [f"{i}" for i in range(70000, 70100)],
    "floats": [f"{i}.0" for i in range(900, 1100)],
}


@pytest.mark.parametrize(
    ("one", "other", "helps"),
    [
        ("plain", "plain", None),
        ("plain", "wide", None),
        ("padded", "padded", None),
        ("padded", "plain", "strip-zeros"),
        ("upper", "lower", "ignore-case"),
        ("plain", "floats", "whole-numbers"),
        ("small", "long", ""),
        ("plain", "upper", ""),
    ],
)
def test_shapes_of_ids_are_compared_before_anything_is_charged(one: str, other: str, helps: str | None) -> None:
    shapes = {"bank": IdShape.of_ids(IDS[one]), "office": IdShape.of_ids(IDS[other])}
    assert {party: IdShape.of(shape.as_entry(), party) for party, shape in shapes.items()} == shapes
    if helps is None:
        check_shapes(shapes)
        return
    with pytest.raises(DataError, match="look different") as refused:
        check_shapes(shapes)
    assert str(refused.value).count("--ids") == (2 if helps else 1) and f"--ids {helps}" in str(refused.value)
    check_shapes(shapes, [helps or AS_THEY_ARE])


def test_padded_ids_are_merged_by_a_rule_and_no_line_is_edited(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = range(60)
    bank = {"id": [f"{i:05d}" for i in rows], "amount": [i * 7 for i in rows], "late": ["0", "1"] * 30}
    office = {"id": [*rows, 7, 9, ""], "old": ["no", "no", "yes", "yes"] * 15 + ["no"] * 3, "grade": [1, 2, 3] * 21}
    pd.DataFrame(bank).to_csv("bank.csv", index=False)
    pd.DataFrame(office).to_csv("office.csv", index=False)
    assert main(["init", "bank.csv", "--party", "bank", "--label", "late"]) == 0
    words = ["init", "office.csv", "--party", "office", "--protected", "old"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "'7' in rows 8 and 61; '9' in rows 10 and 62" in told and "--duplicates first" in told
    assert main([*words, "--id", "old", "--duplicates", "first"]) == 2
    assert sorted(p.name for p in here.iterdir()) == ["bank.csv", "draft-bank.toml", "office.csv"], "nothing is left"
    assert main([*words, "--duplicates", "first"]) == 0
    assert "without 3 rows: 61, 62, 63" in capsys.readouterr().out
    merge = ["init", "--merge", "draft-bank.toml", "draft-office.toml", "--name", "loans"]
    assert main(merge) == 2 and "--ids strip-zeros if 0012 and 12 are one person" in capsys.readouterr().err
    assert main([*merge, "--ids", "strip-zeros"]) == 0
    assert [main(["check", "loans.toml", "--party", party]) for party in ("bank", "office")] == [0, 0]
    assert own_part(here / "loans.toml", 0, 0).ids.tolist() == own_part(here / "loans.toml", 1, 0).ids.tolist()


def test_each_party_has_its_own_name_for_the_id(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The label holder's is the common one; another column of that name at another party takes no part."""
    drafts(here)
    office = pd.read_csv("office.csv").rename(columns={"id": "Person Nr"})
    office.assign(id=[f"r{i}" for i in range(40)]).to_csv("office.csv", index=False)
    (here / "draft-office.toml").unlink()
    assert main(["init", "office.csv", "--party", "office", "--protected", "old", "--id", "Person Nr"]) == 0
    assert main(["init", "--merge", "draft-bank.toml", "draft-office.toml", "--name", "loans"]) == 0
    assert [main(["check", "loans.toml", "--party", party]) for party in ("bank", "office")] == [0, 0]
    assert "not used" not in capsys.readouterr().out
    schema = own_schema(here / "loans.toml")
    assert [schema.own_id(rank) for rank in range(2)] == ["id", "Person Nr"]
    bank, new = (
        read_new_records(here / f, schema, k, uses_s=False) for k, f in enumerate(("bank.csv", "office.csv"))
    )
    assert bank.ids.tolist() == new.ids.tolist() == sorted(f"c{i}" for i in range(40))
    assert sorted(new.written) == new.ids.tolist()
    assert (
        decision_lines(schema, ["c1"], np.zeros((1, 1)), np.ones(1), {}, False, {}, "Person Nr")[0][0] == "Person Nr"
    )
    office.drop(columns="Person Nr").to_csv("office.csv", index=False)
    assert main(["check", "loans.toml", "--party", "office"]) == 2


def test_numbers_that_are_codes_are_a_category_on_request() -> None:
    cells = pd.Series([str(i % 6 + 1) for i in range(N - 1)] + ["9"], dtype="string")
    assert guess("x", cells).notes == ("only 7 whole numbers: if they are codes of categories, add --category x",)
    entry = guess("x", cells, category=True).entry
    assert entry is not None and entry["categories"] == ["1", "2", "3", "4", "5", "6", "other"]
