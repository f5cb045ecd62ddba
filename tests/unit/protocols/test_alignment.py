"""Alignment: equal lists pass, anything else stops every party and says between whom."""

import pytest

from protocols.alignment.interface import AlignmentError
from protocols.alignment.pre_aligned import PreAligned
from protocols.records.releases import ReleasePlan
from secure_sccvfl.releases.catalogue import ALIGNMENT, Facts
from tests.support.harness import run_session

IDS = [f"r{i:03d}" for i in range(50)]


def run(lists, **settings):
    names = [f"office {k}" for k in range(len(lists))]

    def job(session):
        try:
            assert PreAligned(session, names).align(lists[session.rank]).size == len(lists[session.rank])
        except AlignmentError as error:
            return str(error)
        return "aligned"

    return run_session(
        job, len(lists), ReleasePlan(ALIGNMENT.releases(Facts({rank: {} for rank in range(len(lists))}))), **settings
    )


def test_equal_lists_are_aligned():
    assert run([IDS, IDS, IDS]) == ["aligned"] * 3


@pytest.mark.parametrize(
    "other",
    [IDS[:-1], IDS[1:] + IDS[:1], [*IDS[:-1], "stranger"], [*IDS, "more"], ["".join(IDS)], []],
    ids=["one missing", "another order", "another record", "one more", "joined", "none"],
)
def test_a_difference_stops_all_and_names_the_two(other):
    told = run([IDS, IDS, other])
    assert len(set(told)) == 1
    assert told[0].startswith("office 2 holds other records, or another order, than office 0, office 1")


def test_no_id_is_in_the_message_or_on_the_wire():
    seen = []

    def watch(transport):
        plain = transport.exchange

        def exchange(step, send, receive):
            seen.extend(array.tobytes() for arrays in send.values() for array in arrays)
            return plain(step, send, receive)

        transport.exchange = exchange
        return transport

    told = run([IDS, IDS[::-1]], wrap=watch)
    assert not any(name in text for name in IDS for text in told)
    assert not any(name.encode() in sent for name in IDS for sent in seen) and len(seen) > 4
