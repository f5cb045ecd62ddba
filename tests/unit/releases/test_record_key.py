"""The key of a consortium: made by all parties, unknown to the dealer, never shown, and missed when it is lost."""

import os
import pickle

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.protocols.alignment.ids import IdRule, canonical
from secure_sccvfl.protocols.errors import LocalError, ProtocolError
from secure_sccvfl.releases.record_key import NAME, RecordKey, record_key
from tests.support.sessions import run_session

IDS = np.array([f"customer {number}" for number in range(30)])
RULE = IdRule(("id",))


def sets_of(folder, ids=IDS, charge=False, rule=RULE, **more):
    """The set that every party makes of the same ids, each in a different order."""

    def job(session):
        party_folder = folder / f"party-{session.rank}"
        party_folder.mkdir(parents=True, exist_ok=True)
        mixed = np.random.default_rng(session.rank).permutation(ids)
        records = record_key(session, party_folder, rule).record_set(mixed)
        if charge:
            budget = Budget.open(party_folder / "ledger.jsonl", 8.0, 1e-5)
            budget.charge(Event("x", 1.0, 9.0, records.digest), "k", records)
        return records

    return run_session(job, 3, **more)


@pytest.fixture
def spent(tmp_path):
    """Ledgers of three parties that have paid for something, and the set it was about."""
    sets = sets_of(tmp_path, charge=True)
    assert len(set(sets)) == 1 and len(sets[0]) == len(IDS)
    return tmp_path, sets[0]


def test_all_parties_make_the_same_set_now_and_later(spent):
    folder, records = spent
    assert sets_of(folder) == [records] * 3
    keys = {(folder / f"party-{rank}" / NAME).read_bytes() for rank in range(3)}
    assert len(keys) == 1 and RecordKey.from_bytes(keys.pop()).rule == RULE
    for rank in range(3):
        assert (folder / f"party-{rank}" / NAME).stat().st_mode & 0o777 == 0o600
        assert sorted(p.name for p in (folder / f"party-{rank}").glob(f"{NAME}*")) == [NAME]


def test_another_consortium_has_other_pseudonyms_so_ids_cannot_be_tried(spent, tmp_path):
    _, records = spent
    other = sets_of(tmp_path / "other")[0]
    assert other.digest != records.digest and not other.inside(records).any()
    assert RecordKey(os.urandom(32)).record_set(IDS) != RecordKey(os.urandom(32)).record_set(IDS)


@pytest.mark.parametrize("lost", [[0], [1, 2], [0, 1, 2]])
def test_a_lost_key_is_refused_by_all_in_one_line(spent, lost):
    folder, _ = spent
    for rank in lost:
        (folder / f"party-{rank}" / NAME).unlink()
    before = sorted(p for p in folder.rglob("*"))
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder)
    message = f"party {lost[0]} has no {NAME} next to its ledger"
    assert all(message in str(error) and isinstance(error, ProtocolError) for error in caught.value.exceptions)
    assert len(caught.value.exceptions) >= 3 and sorted(p for p in folder.rglob("*")) == before


def test_another_key_is_refused_and_not_said(spent):
    folder, _ = spent
    other = bytes(range(32))
    (folder / "party-1" / NAME).write_bytes(other)
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder)
    assert caught.group_contains(ProtocolError, match=f"the parties' {NAME} differ")
    (folder / "party-1" / NAME).write_bytes(other[:31])
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder)
    assert caught.group_contains(LocalError, match="bring it back")
    assert other.hex() not in str(caught.value.exceptions) and str(other) not in str(caught.value.exceptions)


def test_a_key_that_nothing_was_charged_under_is_replaced(tmp_path):
    """A first session that died between one party's file and another's must not lock the consortium out."""
    first = sets_of(tmp_path)[0]
    assert sets_of(tmp_path) == [first] * 3
    (tmp_path / "party-2" / NAME).unlink()
    again = sets_of(tmp_path)
    assert len(set(again)) == 1 and again[0] != first and sets_of(tmp_path) == again


def test_two_first_sessions_at_once_do_not_overwrite_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("secure_sccvfl.releases.record_key._read", lambda path: None)
    sets_of(tmp_path)
    kept = [(tmp_path / f"party-{rank}" / NAME).read_bytes() for rank in range(3)]
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(tmp_path)
    assert caught.group_contains(LocalError, match="another session has just made one")
    assert [(tmp_path / f"party-{rank}" / NAME).read_bytes() for rank in range(3)] == kept


def test_the_dealer_gets_no_part_of_the_key_and_parts_are_never_the_key(tmp_path):
    sent = []

    class Watched:
        def __init__(self, transport):
            self._inner = transport

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def exchange(self, step, send, receive):
            if "key of records" in step:
                sent.extend((step, to, np.asarray(parts[0]).tobytes()) for to, parts in send.items())
            return self._inner.exchange(step, send, receive)

    sets_of(tmp_path, charge=True, wrap=Watched)
    sets_of(tmp_path, wrap=Watched)
    key = (tmp_path / "party-0" / NAME).read_bytes()
    assert {step for step, *_ in sent} == {
        "key of records",
        "parts of the key of records",
        "check of the key of records",
    }
    assert {to for _, to, _ in sent} == {0, 1, 2}, "the dealer has rank 3"
    assert not any(key in part or part in key for _, _, part in sent if len(part) > 1)


def test_a_key_shows_nothing_of_itself():
    key = RecordKey(bytes(range(32)))
    assert repr(key) == str(key) == "<key of records>" and not hasattr(key, "__dict__")
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
    with pytest.raises(ValueError, match="another length"):
        RecordKey(b"short")


OTHER = IdRule(("id",), drop_leading_zeros=True)


def test_pseudonyms_are_of_one_form_of_an_id(spent):
    folder, records = spent
    assert sets_of(folder, ids=np.char.upper(IDS)) == [records] * 3
    key = RecordKey.from_bytes((folder / "party-0" / NAME).read_bytes())
    assert key.record_set(["\u00c9 1"]) == key.record_set(["e\u03011\u200b"]) != key.record_set(["e1"])
    assert canonical(str(IDS[0])) == "customer0"


def test_a_key_that_was_used_with_another_id_rule_is_refused_by_all(spent):
    folder, records = spent
    before = (folder / "party-1" / NAME).read_bytes()
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder, rule=OTHER)
    message = (
        "the description makes ids of column 'id', leading zeros dropped, and the ledger of party 0 knows records"
    )
    assert all(message in str(error) for error in caught.value.exceptions if type(error) is ProtocolError)
    assert caught.group_contains(ProtocolError, match="which were made of column 'id': under another rule")
    assert (folder / "party-1" / NAME).read_bytes() == before and sets_of(folder) == [records] * 3


def test_a_key_that_nothing_was_charged_under_takes_another_rule(tmp_path):
    first = sets_of(tmp_path)
    assert sets_of(tmp_path, rule=OTHER) == first, "the same key"
    assert RecordKey.from_bytes((tmp_path / "party-0" / NAME).read_bytes()).rule == OTHER


def test_a_key_of_an_earlier_version_keeps_its_pseudonyms_and_is_bound_to_the_next_rule(spent):
    """32 bytes alone, and pseudonyms of ids as they are written: records that have spent must stay the same ones."""
    folder, _ = spent
    keys = [folder / f"party-{rank}" / NAME for rank in range(3)]
    alone = keys[0].read_bytes()[:32]
    for path in keys:
        path.write_bytes(alone)
    old = RecordKey(alone, canonical=False).record_set(IDS)
    assert sets_of(folder) == [old] * 3 != [RecordKey(alone).record_set(IDS)] * 3
    assert len({path.read_bytes() for path in keys}) == 1 and keys[0].stat().st_mode & 0o777 == 0o600
    assert sets_of(folder) == [old] * 3
    with pytest.raises(ExceptionGroup, match="parties failed") as caught:
        sets_of(folder, rule=OTHER)
    assert caught.group_contains(ProtocolError, match="under another rule")


def test_a_party_that_lost_what_its_key_is_bound_to_is_noticed(spent):
    folder, _ = spent
    path = folder / "party-2" / NAME
    path.write_bytes(path.read_bytes()[:32])
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder)
    assert caught.group_contains(ProtocolError, match=f"the parties' {NAME} differ")
    path.write_bytes(path.read_bytes() + b"\n{}")
    with pytest.raises(ExceptionGroup) as caught:
        sets_of(folder)
    assert caught.group_contains(LocalError, match="bring it back")
