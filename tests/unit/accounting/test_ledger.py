"""The book of charges: what damage it notices, what a crash leaves, and what a budget refuses."""

import json
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.accounting.accountant import epsilon_added, epsilon_against_dealer, epsilon_of
from secure_sccvfl.accounting.budget import Budget, BudgetError, account_of
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.ledger import SETS, Ledger, LedgerError, LedgerFull, chained, read_ledger
from secure_sccvfl.accounting.records import RecordSet

CAP, DELTA = 8.0, 1e-5
MULTIPLIER = noise_multiplier(CAP, DELTA, 5)


RECORDS, OTHERS = (RecordSet(np.arange(low, low + 8, dtype=np.uint64)) for low in (0, 100))


def event(i=0, multiplier=MULTIPLIER, records=RECORDS):
    return Event(f"sketch-{i}", 3.0, 3.0 * multiplier, records.digest, refresh=i)


def open_budget(path):
    return Budget.open(path, CAP, DELTA)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "data" / "ledger.jsonl"
    budget = open_budget(path)
    for i in range(3):
        budget.charge(event(i), f"run/{i}", RECORDS)
    return path


def test_a_second_run_starts_from_what_is_spent(ledger):
    again = open_budget(ledger)
    assert [e.name for e in again.events] == ["sketch-0", "sketch-1", "sketch-2"]
    for i in (3, 4):
        again.charge(event(i), f"other run/{i}", RECORDS)
    before = ledger.read_bytes()
    with pytest.raises(BudgetError, match=r"epsilon would be 8\.9.*the cap is 8"):
        again.charge(event(5), "other run/5", RECORDS)
    assert ledger.read_bytes() == before, "a refusal writes nothing"


def test_the_cap_has_no_tolerance():
    exact = noise_multiplier(CAP, DELTA, 1)
    for multiplier, fits in ((exact, True), (exact * (1 - 1e-6), False)):
        budget = Budget.in_memory(CAP, DELTA)
        assert budget.ask(event(multiplier=multiplier), RECORDS).allowed == fits
        if not fits:
            with pytest.raises(BudgetError):
                budget.charge(event(multiplier=multiplier), "k", RECORDS)


def test_a_key_pays_once_and_for_one_release(ledger):
    budget, before = open_budget(ledger), ledger.read_bytes()
    assert budget.charge(event(1), "run/1", RECORDS).after == pytest.approx(epsilon_of(budget.events[:2], DELTA))
    assert ledger.read_bytes() == before
    with pytest.raises(BudgetError, match="already paid for another release"):
        budget.charge(event(1, multiplier=9.0), "run/1", RECORDS)
    with pytest.raises(ValueError, match="needs a key"):
        budget.charge(event(3), "", RECORDS)


def test_records_that_the_event_does_not_name_and_another_cap_are_refused(ledger):
    for epsilon, delta in ((9.0, DELTA), (CAP, 1e-6)):
        with pytest.raises(BudgetError, match="a cap is set once"):
            Budget.open(ledger, epsilon, delta)
    before = ledger.read_bytes()
    for use in (lambda b: b.charge(event(3), "run/3", OTHERS), lambda b: b.ask(event(3), OTHERS)):
        with pytest.raises(BudgetError, match="other records"):
            use(open_budget(ledger))
    assert ledger.read_bytes() == before


def test_the_book_in_memory_is_the_book_on_disk(ledger):
    memory = Budget.in_memory(CAP, DELTA)
    for i in range(3):
        memory.charge(event(i), f"run/{i}", RECORDS)
    assert memory.head_digest == open_budget(ledger).head_digest
    assert memory.charges == open_budget(ledger).charges


def test_parties_that_write_numbers_differently_get_the_same_head():
    heads = set()
    for kind in (int, float):
        budget = Budget.in_memory(kind(8), DELTA)
        budget.charge(Event("x", kind(2), kind(20), RECORDS.digest), "k", RECORDS)
        heads.add(budget.head_digest)
    assert len(heads) == 1


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


def resealed(text):
    """One line changed and its own hash made right again, as by someone who knows how."""
    entry = json.loads(text)
    entry["event"]["sigma"] *= 10
    content = {k: v for k, v in entry.items() if k not in ("index", "previous", "hash")}
    return json.dumps({**chained([{"hash": entry["previous"]}] * entry["index"], content)}) + "\n"


DAMAGE = {
    "torn": lambda text: [*text[:-1], text[-1][:-20]],
    "torn at the newline": lambda text: [*text[:-1], text[-1][:-1]],
    "edited": lambda text: [*text[:2], text[2].replace('"sketch-1"', '"sketch-7"'), text[3]],
    "edited and sealed again": lambda text: [*text[:2], resealed(text[2]), text[3]],
    "last line edited and sealed again": lambda text: [*text[:3], resealed(text[3])],
    "dropped": lambda text: [*text[:2], text[3]],
    "first dropped": lambda text: text[1:],
    "swapped": lambda text: [text[0], text[2], text[1], text[3]],
    "duplicated": lambda text: [*text, text[-1]],
    "cut off": lambda text: text[:-1],
    "cut off to the terms": lambda text: text[:1],
    "emptied": lambda text: [],
    "a line that is no charge": lambda text: [*text, "[]\n"],
    "an empty line": lambda text: [*text, "\n"],
    "not text": lambda text: [*text, "\udcff\n"],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_refused_until_it_is_mended(ledger, kind):
    good, budget = ledger.read_bytes(), open_budget(ledger)
    bad = "".join(DAMAGE[kind](lines_of(ledger))).encode(errors="surrogateescape")
    assert bad != good
    ledger.write_bytes(bad)
    with pytest.raises(LedgerError, match="nothing was charged; do not delete it, bring back the last good copy"):
        open_budget(ledger)
    for use in (
        lambda: budget.charge(event(3), "run/3", RECORDS),
        lambda: budget.ask(event(3), RECORDS),
        lambda: budget.head_digest,
    ):
        with pytest.raises(LedgerError):
            use()
    with pytest.raises(LedgerError):
        read_ledger(ledger)
    assert ledger.read_bytes() == bad, "what is damaged is left as evidence"
    ledger.write_bytes(good)
    assert budget.charge(event(3), "run/3", RECORDS).allowed


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"count": 2}', '{"count": 1, "digest": "00"}'])
def test_a_head_that_is_missing_or_damaged_is_refused(ledger, content):
    head = ledger.with_name("ledger.jsonl.head")
    head.unlink() if content is None else head.write_text(content)
    with pytest.raises(LedgerError, match="nothing was charged"):
        open_budget(ledger)


def test_a_missing_ledger_with_its_head_present_is_no_fresh_start(ledger):
    ledger.unlink()
    with pytest.raises(LedgerError, match="4 lines are missing at the end"):
        open_budget(ledger)


def test_a_head_one_line_behind_is_what_a_crash_leaves_and_the_line_counts(ledger):
    head = ledger.with_name("ledger.jsonl.head")
    old = head.read_text()
    open_budget(ledger).charge(event(3), "run/3", RECORDS)
    new = head.read_text()
    head.write_text(old)
    assert [e.name for e in open_budget(ledger).events][-1] == "sketch-3"
    assert head.read_text() == new, "and the head is moved up"
    head.write_text(old)
    open_budget(ledger)
    open_budget(ledger).charge(event(4), "run/4", RECORDS)
    head.write_text(old)
    with pytest.raises(LedgerError, match="too old"):
        open_budget(ledger)


def test_a_half_written_new_file_is_ignored(ledger):
    ledger.with_name("ledger.jsonl.new").write_text('{"index": 0')
    ledger.with_name("ledger.jsonl.head.new").write_text("{")
    assert open_budget(ledger).charge(event(3), "run/3", RECORDS).allowed


def test_a_link_leads_to_the_same_ledger_not_to_a_second_one(ledger, tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to(ledger)
    open_budget(link).charge(event(3), "run/3", RECORDS)
    assert link.is_symlink() and len(open_budget(ledger).events) == 4


def test_a_path_that_cannot_be_written_is_reported_in_one_line(ledger):
    for path in (ledger / "ledger.jsonl", ledger.parent):
        with pytest.raises(LedgerError, match="release nothing until it can be read and written"):
            open_budget(path)


@pytest.mark.parametrize("limit", [64, 700, 1500])
def test_a_full_disk_charges_nothing_or_all_of_it(ledger, limit):
    """The operating system refuses to let any file grow beyond a limit, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, budget = ledger.read_bytes(), open_budget(ledger)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(LedgerFull, match=r"disk is full.*release nothing") as caught:
            budget.charge(event(3), "run/3", RECORDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert Path(caught.value.reason.filename) == ledger.resolve()
    assert ledger.read_bytes() == before
    assert budget.charge(event(3), "run/3", RECORDS).allowed, "and it continues when there is space"


def test_a_charge_is_on_the_disk_before_it_returns(ledger, monkeypatch):
    """What survives a loss of power: content before its name, ledger before head, folder after each."""
    calls, fsync, replace = [], os.fsync, os.replace

    def seen_fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append("folder" if path.is_dir() else f"content of {path.name}")
        fsync(handle)

    def seen_replace(source, target):
        calls.append(f"name of {target.name}")
        replace(source, target)

    budget = open_budget(ledger)
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    budget.charge(event(3), "run/3", RECORDS)
    files = ("ledger.jsonl", "ledger.jsonl.head")
    assert calls == [c for f in files for c in (f"content of {f}.new", f"name of {f}", "folder")]


def test_files_are_for_their_owner_alone(ledger):
    assert {p.stat().st_mode & 0o777 for p in ledger.parent.rglob("*") if p.is_file()} == {0o600}
    assert len([p for p in ledger.parent.rglob("*") if p.is_file()]) == 4, "ledger, head, lock, one set"


def test_a_chain_that_holds_but_makes_no_sense_is_refused():
    def book(*contents):
        entries = []
        for content in contents:
            entries.append(chained(entries, content))
        return entries

    terms = {"kind": "terms", "version": 2, "epsilon": 8.0, "delta": DELTA}
    charge = {"kind": "charge", "key": "k", "event": event().to_dict()}
    sets = Ledger()
    sets.keep(RECORDS)
    assert len(account_of(book(terms, charge), sets.load).charges) == 1
    for bad in (
        book(),
        book(charge),
        book({**terms, "version": 1}),
        book({**terms, "version": 3}),
        book({**terms, "epsilon": -1}),
        book(terms, {"kind": "gift"}),
        book(terms, terms),
        book(terms, charge, charge),
        book(terms, {**charge, "event": event(records=OTHERS).to_dict()}),
        book(terms, {**charge, "event": {**event().to_dict(), "sigma": float("inf")}}),
    ):
        with pytest.raises(LedgerError, match="nothing was charged"):
            account_of(bad, sets.load)


REQUESTS = st.lists(st.tuples(st.floats(0.3, 12), st.integers(1, 6), st.just(1.0)), max_size=14)
SAMPLED = st.tuples(st.floats(0.8, 3), st.integers(1, 60), st.just(0.1))


@settings(max_examples=30, deadline=None)
@given(requests=REQUESTS, cap=st.floats(0.5, 12), data=st.data())
def test_no_sequence_of_requests_spends_more_than_the_cap(requests, cap, data):
    budget, paid = Budget.in_memory(cap, DELTA), []
    requests = [*requests, data.draw(SAMPLED)]
    for number, (multiplier, count, sampling) in enumerate(requests):
        key = f"k{data.draw(st.integers(0, number))}"
        asked = Event("x", 1.0, multiplier, RECORDS.digest, count=count, sampling=sampling, added=0.5)
        repeated = key in [c.key for c in budget.charges]
        try:
            quote = budget.charge(asked, key, RECORDS)
            assert quote.allowed
            paid += [] if repeated else [asked]
        except BudgetError:
            assert repeated or epsilon_of([*paid, asked], DELTA) > cap, "only what does not fit is refused"
    assert list(budget.events) == paid
    assert epsilon_of(paid, DELTA) <= cap


def numbered(*pseudonyms):
    return RecordSet(np.array(pseudonyms, np.uint64))


def test_a_set_of_records_ignores_the_order_of_pseudonyms_and_shows_none():
    assert numbered(3, 1, 2) == numbered(1, 2, 2, 3) and len(numbered(1, 2, 2)) == 2
    assert numbered(3, 1, 2).digest == numbered(1, 2, 3).digest != numbered(1, 2, 4).digest
    assert repr(numbered(12345)) == "<1 records>" and RecordSet.from_bytes(RECORDS.to_bytes()) == RECORDS
    for bad in ([], np.arange(3), np.zeros((2, 2), np.uint64), np.array([0.5])):
        with pytest.raises(ValueError, match="unsigned pseudonym"):
            RecordSet(bad)


def test_one_record_more_or_less_resets_nothing(ledger):
    """Five releases fit; three were made about the eight records."""
    grown, shrunk = numbered(*range(9)), numbered(*range(7))
    budget = open_budget(ledger)
    for number, records in enumerate((grown, shrunk)):
        budget.charge(event(3 + number, records=records), f"next/{number}", records)
    for records in (grown, shrunk, RECORDS, numbered(2), numbered(5, 200)):
        with pytest.raises(BudgetError, match=r"epsilon would be 8\.9"):
            budget.charge(event(9, records=records), "one too many", records)
    late = numbered(8, 300)  # these were part of one release, and of none
    assert budget.ask(event(9, records=late), late).before == pytest.approx(budget.account.spent(numbered(8)).renyi)
    assert budget.account.spent(numbered(300)).renyi == 0.0 and budget.account.spent(late).renyi < budget.spent.renyi
    assert budget.spent == budget.account.spent(numbered(3)) and budget.paid("next/1") and not budget.paid("next/2")


@settings(max_examples=30, deadline=None)
@given(
    charged=st.lists(
        st.tuples(st.sets(st.integers(0, 9), min_size=1), st.sampled_from([2.0, 3.0, 5.0]), st.sampled_from([1, 2])),
        max_size=6,
    ),
    asked=st.sets(st.integers(0, 12), min_size=1),
)
def test_what_a_set_has_spent_is_what_its_dearest_record_has(charged, asked):
    """Against a loop over records, each composed from the releases it was part of."""
    budget = Budget.in_memory(1e6, DELTA)
    for number, (pseudonyms, multiplier, copies) in enumerate(charged):
        records = numbered(*pseudonyms)
        release = Event("x", 1.0, multiplier, records.digest, copies=copies, dealer_copies=2 - copies, added=0.6)
        budget.charge(release, f"k{number}", records)
    events = budget.events

    def dearest(pseudonyms, reading, more=()):
        lists = [[e for e, (t, *_) in zip(events, charged, strict=True) if one in t] for one in pseudonyms]
        return max(reading([*each, *more], DELTA) for each in lists)

    records = numbered(*asked)
    new = Event("new", 1.0, 4.0, records.digest)
    quote = budget.ask(new, records)
    assert quote.before == dearest(asked, epsilon_of) and quote.after == dearest(asked, epsilon_of, [new])
    assert epsilon_of(budget.account.dearest(records), DELTA) == quote.before
    everyone = set().union(*(pseudonyms for pseudonyms, *_ in charged)) or {0}
    for reading in (epsilon_of, epsilon_added, epsilon_against_dealer):
        assert budget.account.most(reading) == dearest(everyone, reading)


DAMAGED_SET = {
    "missing": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "another record": lambda path: path.write_bytes(numbered(*range(1, 9)).to_bytes()),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGED_SET)
def test_a_set_that_is_missing_or_altered_is_refused_until_it_is_mended(ledger, kind):
    budget, path = open_budget(ledger), ledger.parent / SETS / RECORDS.digest
    good = path.read_bytes()
    assert RecordSet.from_bytes(good) == RECORDS
    DAMAGED_SET[kind](path)
    for use in (
        lambda: open_budget(ledger),
        lambda: budget.charge(event(3), "run/3", RECORDS),
        lambda: budget.charge(event(3, records=OTHERS), "run/3", OTHERS),
        lambda: budget.spent,
    ):
        with pytest.raises(LedgerError, match=f"{SETS}/{RECORDS.digest[:12]}: .*nothing was charged"):
            use()
    path.rmdir() if path.is_dir() else None
    path.write_bytes(good)
    assert len(open_budget(ledger).charges) == 3 and budget.charge(event(3), "run/3", RECORDS).allowed


def test_a_set_is_on_the_disk_before_the_line_that_names_it(ledger, monkeypatch):
    named, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (named.append(new.name), replace(old, new)))
    open_budget(ledger).charge(event(3, records=OTHERS), "run/3", OTHERS)
    assert named == [OTHERS.digest, "ledger.jsonl", "ledger.jsonl.head"]


def test_a_line_of_another_ledger_is_taken_over_only_for_own_records(ledger):
    """The line that would follow here, about records that this party cannot make from its ids."""
    peer = Budget.in_memory(CAP, DELTA)
    for i in range(3):
        peer.charge(event(i), f"run/{i}", RECORDS)
    peer.charge(event(3, records=OTHERS), "run/3", OTHERS)
    budget = open_budget(ledger)
    with pytest.raises(BudgetError, match="records that this one does not have"):
        budget.catch_up(peer.last_line, [RECORDS])
    assert len(budget.charges) == 3
    budget.catch_up(peer.last_line, [OTHERS])
    assert budget.head_digest == peer.head_digest
    assert Budget.open(ledger, CAP, DELTA).account.spent(OTHERS).renyi == peer.account.spent(OTHERS).renyi
