"""Secret batches: drawn at the charged rate, unknown to every party, exact in what they leave of a sum."""

import numpy as np
import pytest

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.steps import weighted_sums
from secure_sccvfl.protocols.steps.weighted_sums import nearest_sampling, secret_batch, threshold
from secure_sccvfl.training.shared import side_by_side
from tests.support.chance import alike, of_rate, uniform
from tests.support.randomness import fresh
from tests.support.sessions import run_session

ROWS = 20_000
SAMPLING = nearest_sampling(0.3)
BITS = Release("bits", (0, 1, 2), (ANY, ANY), "test", times=4)


def draw(sampling, calls=2, rows=ROWS):
    """The bits of each batch (opened, which only a test does) and every party's share of each tuple."""
    taken: dict[int, list[dict[str, np.ndarray]]] = {0: [], 1: [], 2: []}

    def job(session):
        party, honest = session.party, session.party.take

        def spying(kind, *arguments):
            fields = honest(kind, *arguments)
            if kind == "sampled":
                taken[session.rank].append({name: value.copy() for name, value in fields.items()})
            return fields

        party.take = spying
        one = np.ones((rows, 1), np.int64)  # the weight 1: what is kept is the bit
        weights = [session.share(one, owner=0, shape=one.shape, bits=0) for _ in range(calls)]
        return [session.open(secret_batch(weight, sampling), BITS).numpy() for weight in weights]

    batches = run_session(job, 3, ReleasePlan([BITS]))
    assert all(np.array_equal(a, b) for other in batches[1:] for a, b in zip(batches[0], other, strict=True))
    return [bits[:, 0] for bits in batches[0]], taken


@pytest.fixture(scope="module")
@fresh
def drawn():
    return draw(SAMPLING)


@pytest.mark.chance(1e-9)
def test_records_take_part_at_the_charged_rate_and_no_other(drawn):
    """One binomial test; 40,000 bits at .3 lie 66 and 60 standard errors from rates of .2 and .45."""
    bits = np.concatenate(drawn[0])
    assert set(np.unique(bits)) == {0.0, 1.0}
    hits = int(bits.sum())
    assert of_rate(hits, bits.size, SAMPLING)
    assert not of_rate(hits, bits.size, SAMPLING * 2 / 3) and not of_rate(hits, bits.size, SAMPLING * 3 / 2)


@pytest.mark.chance(1e-9)
def test_batches_and_records_are_independent(drawn):
    """Two binomial tests; of neighbours every other pair, since pairs that share a record are not independent."""
    first, second = (bits > 0 for bits in drawn[0])
    for one, other in ((first, second), (first[::2], first[1::2])):
        assert of_rate(int((one & other).sum()), one.size, SAMPLING**2)


def tells_the_batch(bits, taken, coalition):
    """Whether what these parties hold of a batch is not uniform, or differs between records in it and out of it.

    They may add up their shares: with all parties together that is the batch itself.
    """
    passed = []
    for name, kind in (("u", np.uint16), ("b", np.int64), ("ab", np.int64), ("a", np.int64)):
        words = sum(taken[rank][0][name].astype(kind) for rank in coalition).astype(kind)[:, 0]
        seen = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
        passed += [uniform(seen), alike(seen[bits == 1], seen[bits == 0])]
    return not all(passed)


@pytest.mark.chance(1e-9)  # eight checks
@pytest.mark.parametrize("coalition", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_no_two_parties_know_the_batch(drawn, coalition):
    bits, taken = drawn
    assert not tells_the_batch(bits[0], taken, coalition)


def test_the_check_notices_who_knows_the_batch(drawn):
    bits, taken = drawn
    assert tells_the_batch(bits[0], taken, (0, 1, 2)), "all shares together are the batch"


def test_a_missing_mask_is_noticed(monkeypatch):
    monkeypatch.setattr(tuples.Field, "expand", lambda self, draw, rank: _only(draw, self, "u2"))
    bits, taken = draw(SAMPLING, calls=1)
    assert any(tells_the_batch(bits[0], taken, (rank,)) for rank in range(3))


def _only(draw, field, kind):
    """Random ring elements of one type; masks of another are left out."""
    return draw.elements(field.shape, field.dtype) if kind in field.dtype else np.zeros(field.shape, field.dtype)


def test_sums_over_a_secret_batch_are_the_plain_ones(monkeypatch):
    """For bits that the test knows: it looks at the dealer."""
    rng, widths, rows, kept = np.random.default_rng(0), (3, 5), 200, []
    recipe = tuples._KINDS["sampled"]

    def watched(*arguments):
        honest = recipe(*arguments)

        def compute(free, masks):
            bound = honest.compute(free, masks)
            kept.append(bound["b"])
            return bound

        return tuples.Recipe(honest.free, honest.bound, compute)

    monkeypatch.setitem(tuples._KINDS, "sampled", watched)
    tuples.recipe.cache_clear()
    blocks = [weighted_sums.clipped(rng.normal(size=(rows, w)), 1.0) for w in widths]
    weight = rng.uniform(-1, 1, (rows, 1))
    release = Release("sum", (0, 1), (ANY,), "test")

    def job(session):
        shared = session.share(weight, owner=1, shape=weight.shape, bits=weighted_sums.WEIGHT_BITS)
        batch = secret_batch(shared, 0.25)
        sums = weighted_sums.weighted_sums(side_by_side(session, widths, blocks[session.rank]), batch)
        return session.open(sums.with_fraction(0), release).numpy()

    sums_of_parties = run_session(job, 2, ReleasePlan([release]))
    tuples.recipe.cache_clear()
    (bits,) = kept
    assert 0 < bits.sum() < rows
    whole = ring.encode(np.hstack(blocks)).T @ (bits * ring.encode(weight, weighted_sums.WEIGHT_BITS))
    for total in sums_of_parties:
        assert np.array_equal(total, whole[:, 0])


def test_one_round_and_none_for_a_full_batch():
    def job(session):
        weight, rounds = session.zeros((50, 1)), []
        for sampling in (1.0, 0.5):
            with session.measure(f"batch {sampling}"):
                kept = secret_batch(weight, sampling)
                session.flush()
            rounds.append((session.costs[f"batch {sampling}"].rounds, kept is weight))
        return rounds

    assert run_session(job, 3) == [[(0, True), (1, False)]] * 3


@pytest.mark.parametrize("chance", [0.0, -0.1, 1.0001, 0.3, float("nan")])
def test_a_chance_that_cannot_be_drawn_exactly_is_refused(chance):
    with pytest.raises(ValueError, match="chance"):
        threshold(chance)


def test_a_chance_is_rounded_once_to_what_can_be_drawn():
    for chance in (1e-9, 0.3, 1 / 3, 0.99999, 1.0):
        drawn = nearest_sampling(chance)
        assert threshold(drawn) / 2**16 == drawn and abs(drawn - chance) <= 2.0**-16
    with pytest.raises(ValueError, match="chance"):
        nearest_sampling(0.0)
