"""The log of predictions on disk: what it keeps, and when it is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.errors import LocalError, LogError
from secure_sccvfl.releases.prediction_log import PredictionLog, open_log
from secure_sccvfl.releases.record_key import RecordKey

KEY = RecordKey(bytes(range(32)))
COLUMNS = np.array([[0.0, 1.0], [0.5, 0.25]])


def filled(folder: Path, run: str = "run") -> PredictionLog:
    """A log with two people on record, one of them answered."""
    with open_log(folder, run, KEY) as log:
        names = log.names(["a", "b"])
        log._append({"kind": "asked", "records": dict(zip(names, log.digests(names, COLUMNS), strict=True))})
        log._append({"kind": "opening"})
        log.answer({names[0]: [1.0, 0.125]}, [])
        return log


def path_of(folder: Path) -> Path:
    (path,) = folder.glob("predictions-*.jsonl")
    return path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    before = filled(tmp_path)
    with open_log(tmp_path, "run", KEY) as log:
        assert log.decided == before.decided and log.answers == before.answers
        assert log.digests(log.names(["a", "b"]), COLUMNS) == list(log.decided.values())
        assert (log.sessions, log.begun) == (1, False) and list(log.decided) == log.names(["a", "b"])


def test_a_person_about_whom_nothing_was_opened_leaves_the_record(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_log(tmp_path, "run", KEY) as log:
        log.answer({}, log.names(["b"]))
    with open_log(tmp_path, "run", KEY) as log:
        assert list(log.decided) == log.names(["a"])


def test_people_who_were_asked_for_and_not_opened_are_not_on_record(tmp_path: Path) -> None:
    with open_log(tmp_path, "run", KEY) as log:
        log._append({"kind": "asked", "records": {"someone": "x"}})
    with open_log(tmp_path, "run", KEY) as log:
        assert log.begun and not log.decided
        log._append({"kind": "asked", "records": {"another": "y"}})
        log._append({"kind": "opening"})
        assert log.decided == {"another": "y"} and not log.begun


def test_names_cannot_be_linked_between_models_or_with_a_ledger_or_without_the_key(tmp_path: Path) -> None:
    ids = ["a", "b"]
    with open_log(tmp_path, "run", KEY) as one, open_log(tmp_path, "other", KEY) as other:
        names = [*one.names(ids), *other.names(ids), *one.names(ids, "scores")]
    with open_log(tmp_path / "strangers", "run", RecordKey(os.urandom(32))) as log:
        names += log.names(ids)
    assert len(set(names)) == 8
    pseudonyms = KEY.record_set(ids).to_bytes().hex()
    assert not any(part in pseudonyms for name in names for part in (name[:16], name[16:]))


def test_digests_of_columns_are_under_a_key_of_the_party_alone(tmp_path: Path) -> None:
    with open_log(tmp_path / "party-0", "run", KEY) as one, open_log(tmp_path / "party-1", "run", KEY) as other:
        names = one.names(["a", "b"])
        assert other.names(["a", "b"]) == names, "all parties know people by the same names"
        digests = [log.digests(names, COLUMNS) for log in (one, other)]
        assert not set(digests[0]) & set(digests[1])
        assert one.digests(names, COLUMNS[::-1]) != digests[0]
        assert "key" not in repr(one) and one._digest_key.hex() not in repr(one)
    filled(tmp_path / "party-0")
    path_of(tmp_path / "party-0").with_suffix(".key").unlink()
    with (
        pytest.raises(LocalError, match=r"\.key: missing or not a key; bring it back"),
        open_log(tmp_path / "party-0", "run", KEY),
    ):
        pass


@pytest.mark.parametrize("left", [None, b"", b"half a key"])
def test_a_crash_before_the_key_was_written_costs_nothing(tmp_path: Path, left: bytes | None) -> None:
    with open_log(tmp_path, "run", KEY):
        pass
    key = path_of(tmp_path).with_suffix(".key")
    key.unlink() if left is None else key.write_bytes(left)
    with open_log(tmp_path, "run", KEY) as log:
        assert log.digests(log.names(["a", "b"]), COLUMNS)


def test_a_log_that_is_gone_while_its_key_is_there_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    path_of(tmp_path).unlink()
    with pytest.raises(LogError, match=r"\.jsonl: missing, and .*\.key is there"), open_log(tmp_path, "run", KEY):
        pass


def test_one_prediction_at_a_time(tmp_path: Path) -> None:
    with (
        open_log(tmp_path, "run", KEY),
        pytest.raises(LocalError, match="another prediction with this model is under way"),
        open_log(tmp_path, "run", KEY),
    ):
        pass
    with open_log(tmp_path, "run", KEY), open_log(tmp_path, "other", KEY):
        pass


def test_a_log_of_another_key_of_records_is_refused(tmp_path: Path) -> None:
    """Under another key everybody would be a stranger."""
    filled(tmp_path)
    with (
        pytest.raises(LocalError, match=r"written with another records\.key"),
        open_log(tmp_path, "run", RecordKey(os.urandom(32))),
    ):
        pass


def test_a_log_of_another_model_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_log(tmp_path / "b", "other", KEY):
        pass
    path_of(tmp_path).write_bytes(path_of(tmp_path / "b").read_bytes())
    with pytest.raises(LogError, match="not the log of predictions of this model"), open_log(tmp_path, "run", KEY):
        pass


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_changed_or_dropped_line_is_refused(tmp_path: Path, line: int) -> None:
    filled(tmp_path)
    lines = path_of(tmp_path).read_text().splitlines()
    edited = [*lines]
    edited[line] = json.dumps({**json.loads(lines[line]), "kind": "answers", "answers": {}, "none": []})
    for bad in (edited, lines[:line] + lines[line + 1 :]):
        path_of(tmp_path).write_text("\n".join(bad) + "\n")
        with pytest.raises(LogError, match="does not continue the chain"), open_log(tmp_path, "run", KEY):
            pass


def test_what_a_crash_left_of_a_line_is_cut_off(tmp_path: Path) -> None:
    """Nothing was sent on account of a line that is not complete."""
    before = filled(tmp_path)
    whole = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(whole + b'{"index": 4, "kind": "ask')
    with open_log(tmp_path, "run", KEY) as log:
        assert log.decided == before.decided
    assert path_of(tmp_path).read_bytes() == whole


def test_a_record_key_is_not_replaced_while_a_log_was_written_with_it(tmp_path: Path) -> None:
    """`record_key` takes a folder with a log for one that is in use."""
    from types import SimpleNamespace

    from secure_sccvfl.protocols.errors import ProtocolError
    from secure_sccvfl.releases.record_key import LOST, record_key

    filled(tmp_path)
    sent: list[int] = []
    session = SimpleNamespace(tell_all=lambda step, state: sent.append(state) or [state, state])
    with pytest.raises(ProtocolError, match=r"has no records\.key next to its ledger"):
        record_key(session, tmp_path, IdRule(("id",)))  # type: ignore[arg-type]
    assert sent == [LOST]
