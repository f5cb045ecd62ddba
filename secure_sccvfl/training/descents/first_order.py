"""One first-order step under MPC: the head in the columns of a descent, one lambda at a time."""

from __future__ import annotations

from protocols.session.runtime import Session, crypten
from protocols.steps.head import HEAD_BITS, Pace
from protocols.steps.second_order import Shared
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training import shared_measures
from secure_sccvfl.training.handles import SharedDescent, Weights

SCALE_BITS = 20
ROOT_BITS = 18


def stepped(
    session: Session, weights: Weights, descent: SharedDescent, pace: Pace, task: Task
) -> tuple[Weights, Shared]:
    """The weights after one step, and the logits that it saw; five rounds, whether rows are counted or not.

    Where they are, the bias is the weight of a last column, which is 1 where a row counts. `descent.both` has the
    rows, and below them H with another fraction: so that the weights are opened once.
    """
    batch, columns = descent.batch, weights.weight.size(0)
    counts = batch.presence is not None
    both = descent.both @ (weights.whole if counts else weights.weight)
    logits = both[: batch.rows] if counts else both[: batch.rows] + weights.bias
    pull = both[batch.rows : batch.rows + columns].with_fraction(2 * HEAD_BITS)
    residual = shared_measures.residual_of(logits, batch.label, task)
    sums = descent.rows.t() @ residual
    session.flush()
    slope, gradients = (sums[columns], sums[:columns]) if counts else (residual.sum(0), sums)
    return _descended(weights, gradients, pull, slope, pace, batch.count), logits


def _descended(weights: Weights, gradients: Shared, pull: Shared, slope: Shared, pace: Pace, records: int) -> Weights:
    """velocity = momentum * velocity - rate * (X^T r / records + H w), weight += velocity; one round."""
    size, shape = weights.weight.nelement(), weights.weight.size()
    flat = crypten.cat([weights.velocity.reshape(-1), weights.bias_velocity.reshape(-1)])
    kept = (pace.momentum * flat).rescale(HEAD_BITS)
    gradient = (pace.rate * gradients / records).rescale(HEAD_BITS)
    pulled = (pace.rate * pull).rescale(HEAD_BITS)
    drift = (slope / (records * pace.bias_curvature / pace.rate)).rescale(HEAD_BITS)
    velocity = kept[:size].reshape(shape) - gradient - pulled
    bias_velocity = kept[size:] - drift
    return Weights(weights.weight + velocity, weights.bias + bias_velocity, velocity, bias_velocity)


def consistency(gram: Shared, root: Shared) -> Shared:
    """The Gram matrix of the edits times roots on both sides (ROOT_BITS), HEAD_BITS."""
    half = (gram * root[:, None]).rescale(gram.encoder._precision_bits)
    return (half * root[None]).rescale(HEAD_BITS)


def times(values: Shared, factors: Shared) -> Shared:
    """Columns with HEAD_BITS times a shared vector with SCALE_BITS."""
    return (values * factors[:, None]).rescale(HEAD_BITS)
