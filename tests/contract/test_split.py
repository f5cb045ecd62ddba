"""A step of split learning in secret against the same step in the clear; what is opened, and to whom."""

import numpy as np
import pytest

from secure_sccvfl.protocols.errors import ProtocolError, RangeError, UndeclaredRelease
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.products import MOST_ROWS, SplitLayout
from secure_sccvfl.protocols.steps import split
from secure_sccvfl.protocols.steps.head import Weights
from secure_sccvfl.research.split.mode import probes, residual_of
from secure_sccvfl.training.shared import share_held
from tests.support.sessions import run_session

ROWS, STEPS = 24, 4
PACE = split.SplitPace(rate=0.1, momentum=0.8, decay=0.01, lam=0.7)


class Problem:
    """Activations of every step, labels and s of random records; party 0 holds the label."""

    def __init__(self, widths, editing, attributes, task="binary", outputs=1, size=1.0):
        rng = np.random.default_rng(1)
        self.layout = SplitLayout(ROWS, widths, editing, attributes, outputs)
        self.task = task
        self.h = [[rng.uniform(0, size, (ROWS, w)) for w in widths] for _ in range(STEPS)]
        self.deltas = [[rng.normal(0, 0.5, (ROWS, self.layout.directions, w)) for w in widths] for _ in range(STEPS)]
        self.codes = [rng.integers(0, count, ROWS) for _, count in attributes]
        self.label = rng.integers(0, max(2, outputs), ROWS)
        self.start = rng.normal(0, 0.4, (sum(widths), outputs))

    @property
    def target(self):
        return np.eye(self.layout.outputs)[self.label] if self.layout.outputs > 1 else self.label[:, None] * 1.0

    def inputs(self, session, step):
        rank = session.rank
        deltas = self.deltas[step][rank] if rank in self.layout.editing else None
        one_hot = {
            number: np.eye(count, dtype=np.int64)[self.codes[number]]
            for number, (holder, count) in enumerate(self.layout.attributes)
            if holder == rank and self.layout.directions
        }
        return split.inputs_of(session, self.layout, self.h[step][rank], deltas, one_hot)

    def plain(self):
        """Head after all steps, and the gradient of every party in every step."""
        w, bias = self.start.copy(), np.zeros(self.layout.outputs)
        v, bias_v, seen = np.zeros_like(w), np.zeros_like(bias), []
        for h, deltas in zip(self.h, self.deltas, strict=True):
            rows = np.hstack(h)
            logits = rows @ w + bias
            r = (logits if self.task == "regression" else 1 / (1 + np.exp(-logits))) - self.target
            pull, shift, at = np.zeros_like(w), np.zeros_like(r), 0
            for codes, (_, count) in zip(self.codes, self.layout.attributes, strict=True):
                if self.layout.directions:
                    moved = np.hstack(
                        [
                            d[np.arange(ROWS), at + codes] * (rank in self.layout.editing)
                            for rank, d in enumerate(deltas)
                        ]
                    )
                    one = moved @ w
                    shift, pull, at = shift + one, pull + moved.T @ one, at + count
            c = r - PACE.lam * shift
            seen.append([c @ w[self.layout.of(rank)].T for rank in range(len(h))])
            v = PACE.momentum * v - PACE.rate * (rows.T @ r / ROWS + PACE.lam * pull / ROWS + PACE.decay * w)
            bias_v = PACE.momentum * bias_v - PACE.rate * r.mean(axis=0)
            w, bias = w + v, bias + bias_v
        return w, bias, seen

    def job(self, releases, everyone):
        def run(session):
            target = self.target if session.rank == 0 else None
            label = share_held(session, target, 0, self.target.shape, split.RESIDUAL_BITS)
            zero, bias = np.zeros_like(self.start), np.zeros(self.layout.outputs)
            parts = (session.public(part, split.SPLIT_HEAD_BITS) for part in (self.start, bias, zero, bias))
            weights, probe, seen = Weights(*parts), probes(self.layout), []
            rounds = []
            for number in session.repeat(STEPS):
                before = session.total_cost.rounds
                stepped = split.split_step(
                    self.layout,
                    weights,
                    self.inputs(session, number),
                    PACE,
                    lambda logits: residual_of(logits, label, self.task),
                    probe,
                )
                weights = stepped.weights
                opened = session.open_each(
                    [
                        (projection, releases[f"gradient {rank}"])
                        for rank, projection in enumerate(stepped.projections)
                    ]
                )
                rounds.append(session.total_cost.rounds - before)
                assert [value is not None for value in opened] == [
                    rank == session.rank for rank in range(session.parties)
                ]
                mine = opened[session.rank].numpy()
                seen.append((mine, split.gradient_of(mine, self.layout, session.rank, probe)))
            weight = session.open(weights.weight, everyone)
            bias = session.open(weights.bias[None], everyone)
            return weight.numpy(), bias.numpy()[0], seen, rounds

        return run

    def session(self):
        """What a party runs, and the plan of what it opens."""
        parties = len(self.layout.widths)
        releases = {
            f"gradient {rank}": Release(f"gradient {rank}", (rank,), (ANY,), "test", times=STEPS)
            for rank in range(parties)
        }
        everyone = Release("head", tuple(range(parties)), (ANY, ANY), "test", times=2)
        return self.job(releases, everyone), ReleasePlan([*releases.values(), everyone])

    def secret(self):
        job, plan = self.session()
        return run_session(job, len(self.layout.widths), plan)


CASES = {
    "three parties": ((6, 4, 5), (0, 2), ((2, 2),)),
    "two parties, one of them edits": ((6, 3), (1,), ((0, 3),)),
    "two attributes": ((3, 4, 2), (0, 1, 2), ((1, 2), (2, 3))),
    "nobody edits": ((6, 4, 5), (), ((2, 2),)),
    "five parties": ((2, 1, 3, 2, 2), (0, 4), ((4, 2),)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_secret_step_is_the_plain_one(case):
    problem = Problem(*CASES[case])
    weight, bias, gradients = problem.plain()
    for rank, (secure_weight, secure_bias, seen, rounds) in enumerate(problem.secret()):
        assert np.abs(secure_weight - weight).max() < 5e-4
        assert np.abs(secure_bias - bias).max() < 5e-4
        assert rounds == [6] * STEPS
        for (_, mine), plain in zip(seen, gradients, strict=True):
            assert np.abs(mine - plain[rank]).max() < 2e-3


@pytest.mark.parametrize(("task", "outputs", "tolerance"), [("regression", 1, 2e-3), ("multiclass", 3, 2e-3)])
def test_other_tasks(task, outputs, tolerance):
    problem = Problem((4, 3, 5), (0, 1), ((2, 2),), task, outputs)
    weight, _, gradients = problem.plain()
    for rank, (secure_weight, _, seen, _) in enumerate(problem.secret()):
        assert np.abs(secure_weight - weight).max() < tolerance
        for (_, mine), plain in zip(seen, gradients, strict=True):
            assert np.abs(mine - plain[rank]).max() < 10 * tolerance


def test_the_opened_gradient_is_dithered(monkeypatch):
    """Without the dither the opened integers are multiples of the head's: the check sees that."""
    problem = Problem((3, 2), (0,), ((1, 2),))

    def common(seen):
        words = np.rint(seen[0][0] * 2**split.PRODUCT_BITS).astype(np.int64)
        first = words[: ROWS * problem.layout.probes].reshape(ROWS, -1)[:, 0]
        return int(np.gcd.reduce(first))

    assert common(problem.secret()[0][2]) == 1
    monkeypatch.setattr(split, "DITHER_BITS", 0)
    assert common(problem.secret()[0][2]) > 1000


@pytest.mark.chance(1e-12)
def test_the_dither_is_one_unit_in_the_last_place():
    """A head of zeros has a gradient of zeros, so what is opened is the dither: uniform over 2^-16 around zero.

    Both parts of it: c V, of 72 words, and Q^T c w, of 48. None of these in the outer half, or none
    in the inner one: 2 * (2^-72 + 2^-48) for each party.
    """
    problem = Problem((16, 16), (0,), ((1, 2),))
    problem.start[:] = 0
    for _, _, seen, _ in problem.secret():
        for part in np.split(np.abs(seen[0][0]), [ROWS * problem.layout.probes]):
            assert part.min() < 2.0**-18 < part.max() <= 2.0**-17


def test_too_many_rows_and_large_activations_are_refused():
    with pytest.raises(RangeError, match="smaller batches"):
        SplitLayout(MOST_ROWS + 1, (3, 3), (), ((0, 2),))

    def job(session):
        """Of an activation, and of how far an edit moves one."""
        layout, small = SplitLayout(2, (1, 1), (0, 1), ((0, 2),)), np.zeros((2, 2, 1))
        one_hot = {0: np.eye(2, dtype=np.int64)}
        large = np.full((2, 1), split.ACTIVATION_LIMIT + 1)
        for given in ((large, small), (small[:, 0], small + large)):
            with pytest.raises(RangeError, match="larger in magnitude than 16"):
                split.inputs_of(session, layout, *given, one_hot)
        return split.inputs_of(session, layout, large / 2, small, one_hot) is not None

    assert run_session(job, 2) == [True, True]


def test_a_party_must_bring_what_the_layout_says():
    """Deltas of a party that edits, the groups at their holder, and blocks of the layout's size."""
    problem = Problem((3, 2), (0,), ((0, 2),))
    activations, deltas, groups = problem.h[0][0], problem.deltas[0][0], {0: np.eye(2)[problem.codes[0]]}
    wrong = (activations, None, groups), (activations, deltas, {}), (activations[:, :2], deltas, groups)

    def job(session):
        if session.rank == 0:
            for given in wrong:
                with pytest.raises((RangeError, ProtocolError)):
                    split.inputs_of(session, problem.layout, *given)

    run_session(job, 2)


def test_a_gradient_reaches_only_its_declared_owner():
    problem = Problem((3, 2), (0,), ((1, 2),))
    declared = {f"gradient {rank}": Release(f"gradient {rank}", (rank,), (ANY,), "test") for rank in (0, 1)}
    other = {**declared, "gradient 1": Release("gradient 1", (0,), (ANY,), "test")}
    everyone = Release("head", (0, 1), (ANY, ANY), "test", times=2)
    with pytest.raises(ExceptionGroup) as caught:
        run_session(problem.job(other, everyone), 2, ReleasePlan([*declared.values(), everyone]))
    assert caught.group_contains(UndeclaredRelease, match="gradient 1")
