"""One step of split learning in secret: encoders at the parties, head, labels and s nowhere in the clear.

Before: party p holds its activations h_p of the rows of this step. If it edits mediators, it also holds how far
every hypothesised edit moves them (`deltas`, one for each group a record may be in). The holder of each protected
attribute holds its one-hot s. Head, velocity and label are shares. After: shares of the new head and velocity, and
of what is opened to each party about its own activations. Activations change in every step, so every step masks
them anew.

| round | opened | words to each peer |
|---|---|---|
| 1 | h - A and deltas - D by their owner, s - S by its holder, w - b | rows x width x (1 + groups), columns |
| 2 | logits u + t modulo the period, shifts v - b_v: then residuals r and y = s v | rows x (1 + groups) |
| 3 | r - b_r, y - b_y: head gradients; c = r - lam * shift is truncated | rows x (2 + groups) |
| 4 | truncation of the update with rate and momentum as divisors; c - b_c | columns x 3 + 2, rows |
| 5, 6 | what precedes every release; to each owner alone: its gradient (see below) | (rows + width) x probes |

Why the first four rounds tell nothing: each opened value is a secret plus a uniform tuple value used once.

What round 6 tells. The gradient of the loss in h_p is G = c w_p^T, of rank `outputs`. Its owner gets G V and Q^T G
for public sign matrices V and Q with a few columns more than the rank. It finds G = (G V) (Q^T G V)^+ (Q^T G). So
it gets a few vectors instead of a matrix, and both are functions of G. They carry a uniform dither of one unit in
the last place (2^-16). The exact integers would tell more, since their common divisors are the head's weights. G
itself gives away every label of the step (attacks/labels.py) and the direction of w_p; that is what `split` means.

What round 6 does not tell. The consistency gradient in the *edited* activations is zero in every direction but the
record's own: it would hand s to every party. So the counterfactual logit is a target: c pulls the original towards
it, and edited activations get no gradient. The head is trained on the whole loss, in secret. c still holds one
number for each record that depends on s where edits shift the logit. Over many steps that tells s to a party that
knows it of other records (tests/contract/test_split_paper.py measures it). So `split` does not keep s private.

Fractions: activations 12 bits, head 18, logits 30, residual 28, c 20. With |h| <= 16, |u| and |v| <= 22 and 2^11
rows all sums stay below 2^62, where truncation is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError, RangeError
from protocols.net.transport import Array, Spec
from protocols.operations.arithmetic import divisions
from protocols.ring import Words
from protocols.steps.head import Weights

ACTIVATION_BITS = 12
SPLIT_HEAD_BITS = 18
SPLIT_LOGIT_BITS = ACTIVATION_BITS + SPLIT_HEAD_BITS
RESIDUAL_BITS = 28
SIGNAL_BITS = 20
PRODUCT_BITS = SIGNAL_BITS + SPLIT_HEAD_BITS
DITHER_BITS = PRODUCT_BITS - 16
ACTIVATION_LIMIT = 16.0
MOST_ROWS = 1 << 11
_LAMBDA_BITS = 8

Pending = tuple[Sequence[Array], Callable[[Sequence[Array]], Words]]
"""Half of a round: what to open, and the function that makes the result from it."""


@dataclass(frozen=True)
class SplitLayout:
    """Public shape of a step: rows, columns of each party, who edits, and (holder, groups) of each attribute."""

    rows: int
    widths: tuple[int, ...]
    editing: tuple[int, ...]
    attributes: tuple[tuple[int, int], ...]
    outputs: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.rows <= MOST_ROWS:
            raise RangeError(f"a split step takes 1 to {MOST_ROWS} rows, not {self.rows}; use smaller batches")

    @property
    def directions(self) -> int:
        """Hypothesised edits of a record: one for each group of each attribute, none where nobody edits."""
        return sum(count for _, count in self.attributes) if self.editing else 0

    @property
    def probes(self) -> int:
        """Two more than the rank of a gradient, so that some combination of its rows is far from zero."""
        return self.outputs + 2

    @property
    def columns(self) -> int:
        return sum(self.widths)

    def of(self, rank: int) -> slice:
        """The columns of a party."""
        ends = list(accumulate(self.widths))
        return slice(ends[rank] - self.widths[rank], ends[rank])

    def arguments(self) -> tuple[object, ...]:
        attributes = self.attributes if self.directions else ()
        return self.rows, self.widths, self.editing, attributes, self.outputs, self.probes, DITHER_BITS


@dataclass(frozen=True)
class Own:
    """What one party brings to a step, in the ring.

    It brings activations, how far each edit moves them (rows x directions x width), and the one-hot rows of the
    attributes that it holds, by number.
    """

    activations: Words = field(repr=False)
    deltas: Words | None = field(default=None, repr=False)
    one_hot: Mapping[int, Words] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SplitPace:
    """Public numbers of a step."""

    rate: float
    momentum: float
    decay: float
    lam: float


@dataclass(frozen=True)
class Stepped:
    """Shares of the new head, of the step's logits and shifts, and of what is opened to each party."""

    weights: Weights
    logits: Words = field(repr=False)
    shifts: Words = field(repr=False)
    sketches: tuple[Words, ...] = field(repr=False)


def encode_activations(values: Array) -> Words:
    """Party step, local."""
    return ring.encode(values, ACTIVATION_BITS, limit=ACTIVATION_LIMIT)


def split_step(
    party: Party,
    layout: SplitLayout,
    weights: Weights,
    own: Own,
    pace: SplitPace,
    residual: Callable[[Words], Pending],
    probe: tuple[Words, Words],
) -> Stepped:
    """All rounds but the last. `residual` starts with logits. `probe` is (V, Q), V with all parties' rows."""
    fields = party.take("split_step", *layout.arguments())
    left, right = probe
    outputs, directions = layout.outputs, layout.directions
    probed = np.concatenate([ring.matmul(weights.weight[s].T, left[s]) for s in _slices(layout)], axis=1)
    blocks, (d, e_probed) = _first_round(party, layout, own, fields, [weights.weight, probed])

    logits, flat = _forward(party, layout, own, blocks, d, fields)
    logits += weights.bias << ACTIVATION_BITS
    opening, finish = residual(logits)
    shifts = np.zeros((layout.rows, directions, outputs), np.int64)
    if directions:
        shifts = flat.reshape(shifts.shape)
        *opened, e_v = party.open_masked("split logits", [*opening, shifts - fields["v"]])
        chosen = _selected(layout, own, blocks, e_v, fields)
    else:
        opened = party.open_masked("split logits", opening) if opening else []
        chosen = shifts
    r = finish(opened)

    shift = chosen.sum(axis=1)
    scaled = np.left_shift(r, SPLIT_LOGIT_BITS + _LAMBDA_BITS - RESIDUAL_BITS)
    scaled = scaled - shift * round(pace.lam * 2**_LAMBDA_BITS)
    narrow, narrowed = divisions(party, [(scaled, 1 << (SPLIT_LOGIT_BITS + _LAMBDA_BITS - SIGNAL_BITS))])
    e_r, e_y, *opened = party.open_masked("split residual", [r - fields["r"], chosen - fields["y"], *narrow])
    (c,) = narrowed(opened)
    task, pull = _backward(layout, own, blocks, e_r, e_y, fields, party.rank)

    q = ring.matmul(right.T, c)
    work, descended = divisions(party, _updates(weights, task, pull, r, pace, layout))
    e_c, e_q, *opened = party.open_masked("split update", [c - fields["c"], q - fields["q"], *work])
    following = _descend(weights, descended(opened))

    by_probe = _beaver(party, e_c, fields["c"], e_probed, fields["p"], fields["cp"])
    by_weight = _beaver(party, e_q, fields["q"], d.T, fields["w"].T, fields["qw"])
    width = layout.probes
    sketches = tuple(
        np.concatenate([by_probe[:, rank * width : (rank + 1) * width].reshape(-1), by_weight[:, s].reshape(-1)])
        for rank, s in enumerate(_slices(layout))
    )
    return Stepped(following, logits, shift, tuple(_centred(party, sketch) for sketch in sketches))


def gradient_of(sketch: Array, layout: SplitLayout, rank: int, probe: tuple[Words, Words]) -> Array:
    """Party step, local: the gradient (rows x width) of the summed loss, from what was opened."""
    cut = layout.rows * layout.probes
    tall, wide = sketch[:cut].reshape(layout.rows, -1), sketch[cut:].reshape(layout.probes, -1)
    left, right = probe[0][layout.of(rank)], probe[1]
    core = (right.T @ tall + wide @ left) / 2
    u, values, v = np.linalg.svd(core)
    kept = np.where(values[: layout.outputs] > 2.0**-10, 1 / np.maximum(values[: layout.outputs], 2.0**-10), 0)
    gradient: Array = (tall @ v[: layout.outputs].T * kept) @ (u[:, : layout.outputs].T @ wide)
    return gradient


def _slices(layout: SplitLayout) -> list[slice]:
    return [layout.of(rank) for rank in range(len(layout.widths))]


def _first_round(
    party: Party, layout: SplitLayout, own: Own, fields: Mapping[str, Array], shared: Sequence[Words]
) -> tuple[dict[str, Words], list[Words]]:
    """Open the masked blocks of every owner and the masked head, in one round; returns opened blocks by name."""
    mine = {f"h{party.rank}": own.activations}
    if own.deltas is not None and party.rank in layout.editing:
        mine[f"d{party.rank}"] = own.deltas.reshape(-1, layout.widths[party.rank])
    mine |= {f"s{number}": rows for number, rows in own.one_hot.items()}
    shapes = {rank: _owned(layout, rank) for rank in range(party.parties)}
    if {name: block.shape for name, block in mine.items()} != shapes[party.rank]:
        raise ProtocolError(f"a split step needs {shapes[party.rank]} of party {party.rank}")
    hidden = {name: block - fields[name] for name, block in mine.items()}
    masked = [shared[0] - fields["w"], shared[1] - fields["p"]]
    send = [*hidden.values(), *masked]
    receive = {
        peer: [*(Spec("<i8", shape) for shape in shapes[peer].values()), *(Spec.of(m) for m in masked)]
        for peer in party.others
    }
    came = party.broadcast("split activations", send, receive)
    for peer, arrays in came.items():
        hidden |= zip(shapes[peer], arrays[:-2], strict=True)
        for total, array in zip(masked, arrays[-2:], strict=True):
            total += array
    return hidden, masked


def _owned(layout: SplitLayout, rank: int) -> dict[str, tuple[int, int]]:
    """Names and shapes of the blocks that a party masks."""
    width, shapes = layout.widths[rank], {}
    shapes[f"h{rank}"] = (layout.rows, width)
    if layout.directions:
        if rank in layout.editing:
            shapes[f"d{rank}"] = (layout.rows * layout.directions, width)
        for number, (holder, count) in enumerate(layout.attributes):
            if holder == rank:
                shapes[f"s{number}"] = (layout.rows, count)
    return shapes


def _forward(
    party: Party, layout: SplitLayout, own: Own, blocks: Mapping[str, Words], d: Words, fields: Mapping[str, Array]
) -> tuple[Words, Words]:
    """Shares of logits and of shifts: x w = x d + (x - A) b + A b, where the owner of x computes the first term."""
    logits, shifts = fields["hw"], fields.get("dw", np.zeros((0, layout.outputs), np.int64))
    b = fields["w"]
    for rank, here in enumerate(_slices(layout)):
        logits += ring.matmul(blocks[f"h{rank}"], b[here])
        if f"d{rank}" in blocks:
            shifts += ring.matmul(blocks[f"d{rank}"], b[here])
    here = layout.of(party.rank)
    logits += ring.matmul(own.activations, d[here])
    if f"d{party.rank}" in blocks and own.deltas is not None:
        shifts += ring.matmul(own.deltas.reshape(-1, layout.widths[party.rank]), d[here])
    return logits, shifts


def _selected(
    layout: SplitLayout, own: Own, blocks: Mapping[str, Words], e: Words, fields: Mapping[str, Array]
) -> Words:
    """Shares of s v (rows x directions x outputs): zero except in the direction of each record's own group."""
    chosen, at = fields["sv"], 0
    for number, (_, count) in enumerate(layout.attributes):
        here = slice(at, at + count)
        chosen[:, here] += blocks[f"s{number}"][:, :, None] * fields["v"][:, here]
        if number in own.one_hot:
            chosen[:, here] += own.one_hot[number][:, :, None] * e[:, here]
        at += count
    return chosen


def _backward(
    layout: SplitLayout,
    own: Own,
    blocks: Mapping[str, Words],
    e_r: Words,
    e_y: Words,
    fields: Mapping[str, Array],
    rank: int,
) -> tuple[Words, Words]:
    """Shares of H^T r and of the sum over directions of D^T y, as in `_forward`."""
    task, pull = fields["hr"], fields.get("dy", np.zeros((layout.columns, layout.outputs), np.int64))
    y = fields["y"].reshape(-1, layout.outputs)
    for owner, here in enumerate(_slices(layout)):
        task[here] += ring.matmul(blocks[f"h{owner}"].T, fields["r"])
        if f"d{owner}" in blocks:
            pull[here] += ring.matmul(blocks[f"d{owner}"].T, y)
    here = layout.of(rank)
    task[here] += ring.matmul(own.activations.T, e_r)
    if f"d{rank}" in blocks and own.deltas is not None:
        pull[here] += ring.matmul(own.deltas.reshape(-1, layout.widths[rank]).T, e_y.reshape(-1, layout.outputs))
    return task, pull


def _updates(
    weights: Weights, task: Words, pull: Words, r: Words, pace: SplitPace, layout: SplitLayout
) -> list[tuple[Words, int]]:
    """Dividends and divisors of the update: the divisors include rate, momentum and lambda."""
    kept, decay = round(pace.momentum * 2**16), round(pace.rate * pace.decay * 2**16)
    velocity = np.concatenate([weights.velocity * kept - weights.weight * decay, weights.bias_velocity[None] * kept])
    unit = layout.rows / pace.rate
    gain = ACTIVATION_BITS + RESIDUAL_BITS - SPLIT_HEAD_BITS
    work = [
        (velocity, 1 << 16),
        (task, round(unit * 2**gain)),
        (r.sum(axis=0), round(unit * 2 ** (RESIDUAL_BITS - SPLIT_HEAD_BITS))),
    ]
    if layout.directions and pace.lam > 0:
        gain = ACTIVATION_BITS + SPLIT_LOGIT_BITS - SPLIT_HEAD_BITS
        work.append((pull, round(unit / pace.lam * 2**gain)))
    return work


def _descend(weights: Weights, parts: Sequence[Words]) -> Weights:
    momentum, task, bias, *pull = parts
    velocity = momentum[:-1] - task
    for part in pull:
        velocity = velocity - part
    bias_velocity = momentum[-1] - bias
    return Weights(weights.weight + velocity, weights.bias + bias_velocity, velocity, bias_velocity)


def _beaver(party: Party, e: Words, a: Words, d: Words, b: Words, c: Words) -> Words:
    """Shares of x y from e = x - a, d = y - b and c = a b."""
    c += ring.matmul(e, b + d if party.rank == 0 else b)
    c += ring.matmul(a, d)
    return c


def _centred(party: Party, sketch: Words) -> Words:
    """Subtract the mean of the dither, which is uniform from 0 on."""
    return sketch - (1 << (DITHER_BITS - 1)) if party.rank == 0 else sketch
