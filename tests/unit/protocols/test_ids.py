"""Ids by a declared rule: the same text for the same id, and errors name rows, to this party alone."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.errors import InputError, reason_for_peers


def ids(values, **switches):
    return IdRule(("id",), **switches).apply({"id": values}, "bank")


@pytest.mark.parametrize(
    "values",
    [
        [7, 12],
        [7.0, 12.0],
        ["7", "12"],
        [" 7", "12\t"],
        np.array([7, 12]),
        np.array([7, 12], np.float32),
        pd.Series([7, 12, None])[:2],
        pd.Series(["7", "12"], dtype="string"),
        [Decimal(7), np.int8(12)],
    ],
    ids=lambda values: str(getattr(values, "dtype", [type(value).__name__ for value in values])),
)
def test_ids_that_differ_in_type_only_are_the_same(values):
    assert ids(values) == ["7", "12"]


def test_a_table_of_pandas_is_read_by_columns():
    table = pd.DataFrame({"id": [3, 1], "more": ["a", "b"]})
    assert IdRule.of("id").apply(table, "bank") == ["3", "1"]
    assert IdRule.of({"columns": ["more", "id"]}).apply(table, "bank") == ['["a", "3"]', '["b", "1"]']


@pytest.mark.parametrize(
    ("value", "switches", "text"),
    [
        (" Ab 1 ", {}, "Ab 1"),
        (" Ab 1 ", {"trim": False}, " Ab 1 "),
        ("STRASSE", {"fold_case": True}, "strasse"),
        ("Straße", {"fold_case": True}, "strasse"),
        ("e\u0301", {}, "\u00e9"),
        ("0012", {}, "0012"),
        ("0012", {"drop_leading_zeros": True}, "12"),
        ("00A0", {"drop_leading_zeros": True}, "A0"),
        ("000", {"drop_leading_zeros": True}, "0"),
        ("0012", {"number": True}, "12"),
        ("12.0", {"number": True}, "12"),
        ("1.2E+1", {"number": True}, "12"),
        ("-0", {"number": True}, "0"),
        (10**30, {}, str(10**30)),
        (True, {}, "True"),
    ],
)
def test_a_rule_says_which_differences_do_not_matter(value, switches, text):
    assert ids([value], **switches) == [text]


@pytest.mark.parametrize("value", ["12a", "1.5", "inf", "nan", "1e999", "1,000"])
def test_what_should_be_a_number_and_is_none_is_refused_by_its_row(value):
    with pytest.raises(InputError, match=r"bank, id column 'id': a number that is not whole.* in row 2"):
        ids(["1", value], number=True)


def test_a_floating_number_that_has_lost_digits_is_refused():
    with pytest.raises(InputError, match=r"has lost digits, in row 1"):
        ids([float(2**53)])


@pytest.mark.parametrize("gap", ["", "  ", None, float("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize("switches", [{}, {"trim": False}, {"number": True}])
def test_a_record_without_an_id_is_refused_by_its_row(gap, switches):
    with pytest.raises(InputError, match=r"no id in rows 2, 3"):
        ids(["1", gap, gap], **switches)


def test_a_repeated_id_is_reported_by_rows_and_never_sent():
    with pytest.raises(InputError) as caught:
        ids(["secret-1", "x", "SECRET-1 ", "y", "x"], fold_case=True)
    assert str(caught.value) == "bank: the same id occurs twice, in rows 1 and 3, 2 and 5: every record needs its own"
    assert reason_for_peers(caught.value) == f"{InputError.kind} (InputError)"
    with pytest.raises(InputError, match=r"rows 1 and 2, 1 and 3, 1 and 4 and 6 more"):
        ids(["a"] * 10)


@given(st.lists(st.tuples(st.text(), st.text()), unique=True, max_size=4))
def test_two_columns_never_give_the_same_id(pairs):
    rule = IdRule(("a", "b"), trim=False)
    kept = [pair for pair in pairs if all(part.strip() for part in pair)]
    columns = {"a": [a for a, _ in kept], "b": [b for _, b in kept]}
    apart = {tuple(rule.apply({"a": [a], "b": [b]}, "bank")) for a, b in kept}
    composed = {tuple(pd.Series(pair).str.normalize("NFC")) for pair in kept}
    assert len(apart) == len(composed)
    if len(composed) == len(kept):
        assert len(set(rule.apply(columns, "bank"))) == len(kept)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "a table with columns"),
        (7, "a table with columns"),
        ({"columns": ["id"], "spaces": True}, "a table with columns"),
        ({"columns": "id"}, "must be a list"),
        ({"columns": []}, "one column or more"),
        ({"columns": [""]}, "one column or more"),
        ({"columns": ["id", "id"]}, "names a column twice"),
        ({"columns": ["id"], "number": "yes"}, "number must be true or false"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(entry, message):
    with pytest.raises(InputError, match=message):
        IdRule.of(entry)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(InputError, match="no id column 'key'; available: id, age"):
        IdRule.of("key").apply({"id": [1], "age": [2]}, "bank")
    assert IdRule.of({"columns": ["id"], "case": "lower"}) == IdRule(("id",), fold_case=True)
    assert IdRule.of({"columns": ["id"], "zeros": "strip"}) == IdRule(("id",), drop_leading_zeros=True)


def test_a_person_is_found_by_either_way_to_write_the_id() -> None:
    padded = IdRule(("nr",), drop_leading_zeros=True)
    assert padded.id_of("004810") == padded.id_of(" 4810") == "4810" and padded.id_of(" ") is None
    several = IdRule(("first", "born"), fold_case=True)
    (made,) = several.apply({"first": ["Ann"], "born": ["1990"]}, "bank")
    assert several.id_of('["ANN", "1990"]') == several.id_of(made) == made
    assert [several.id_of(text) for text in ("Ann", '["Ann"]', '["Ann", ""]', "3")] == [None] * 4
