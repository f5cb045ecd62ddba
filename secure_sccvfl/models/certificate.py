"""The certificate: which decisions no values of the mediators can change.

The logit of a linear head on plain encodings is additive in the features: z = a + sum_j f_j(x_j). Each f_j is linear
between the public cuts of a number, so its extremes over all public values are at its *levels*: the cuts, the
categories, and a missing value where the dictionary allows one. With L and U the sums over the mediators of the
smallest and largest f_j, a record is certified if and only if a + L > 0 or a + U <= 0. Then no values of the
mediators change its decision; for every other record some do. No counterfactual model, table or group enters.

Contributions are counted from the first level of each mediator, so `a` is the logit of the record with all mediators
at their first levels (`at_first_level`), which its parties encode locally. The rows of `level_encodings` are public.
Under MPC they are multiplied by the secret weights once per model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.models.encoders import Encoder, PlainEncoder
from secure_sccvfl.protocols.errors import InputError

Contributions = Sequence[np.ndarray]
"""For each mediator, what each of its levels adds to the logits (levels x outputs); its first level adds 0."""


class CertificateError(InputError):
    """This model has no certificate; the message says why."""


def levels(block: Block) -> np.ndarray:
    """The levels of a feature in input space (levels x width): categories or cuts in their order, missing last."""
    if block.one_hot:
        return np.eye(block.width)
    cuts = unit_cuts(block.feature)
    rows = np.zeros((len(cuts) + block.width - 1, block.width))
    rows[: len(cuts), 0] = cuts
    rows[len(cuts) :, 1:] = 1.0
    return rows


def at_first_level(layout: Layout, inputs: np.ndarray, edited: Collection[str]) -> np.ndarray:
    """Party step, local: these records with each of these features at its first level."""
    moved = inputs.copy()
    for block in layout.blocks:
        if block.feature.name in edited:
            moved[:, block.columns] = levels(block)[0]
    return moved


def level_inputs(layout: Layout, edited: Collection[str]) -> list[np.ndarray]:
    """For each of these features a record for each of its levels, with all other features at their first levels."""
    first = at_first_level(layout, np.zeros((1, layout.width)), layout.names)
    records = []
    for block in layout.blocks:
        if block.feature.name in edited:
            rows = levels(block)
            inputs = np.repeat(first, len(rows), axis=0)
            inputs[:, block.columns] = rows
            records.append(inputs)
    return records


def end_rows(
    layouts: Mapping[int, Layout], rank: int, inputs: np.ndarray, edited: Collection[str]
) -> tuple[np.ndarray, list[int]]:
    """Party step, local: its part of the rows that are scored for a certificate under MPC, and the number of levels.

    First its records with their mediators at their first levels, then a row for every level of every mediator of all
    parties; the columns of others, and all other features, stay at their first levels there. The rows of levels
    follow from the public dictionary.
    """
    own = level_inputs(layouts[rank], edited)
    first = at_first_level(layouts[rank], np.zeros((1, layouts[rank].width)), layouts[rank].names)
    rows, counts = [at_first_level(layouts[rank], inputs, edited)], []
    for owner, layout in layouts.items():
        for block in layout.blocks:
            if block.feature.name in edited:
                counts.append(len(levels(block)))
                rows.append(own.pop(0) if owner == rank else np.repeat(first, counts[-1], axis=0))
    return np.concatenate(rows), counts


def level_encodings(encoder: Encoder, edited: Collection[str]) -> list[np.ndarray]:
    """Party step, local: for each of these features the change of the encoding from its first level to each level.

    The rows (levels x columns of the party) follow from the public dictionary. Times the weights of the head they are
    the contributions.
    """
    if not isinstance(encoder, PlainEncoder):
        raise CertificateError(f"no certificate: an encoder of kind {type(encoder).__name__} mixes columns")
    return [encoder(inputs) - encoder(inputs[:1]) for inputs in level_inputs(encoder.layout, edited)]


def range_gram(encoder: Encoder, edited: Collection[str]) -> np.ndarray:
    """Party step, local: the matrix R of the range penalty kappa / 2 w^T R w, over the columns of the party.

    For each of these features it is twice the covariance of the encodings of its levels, all equally likely. So
    w^T R w is the sum over the features of the mean squared difference of two contributions: small ranges U - L
    certify more decisions. R follows from the public dictionary and the roles: it uses no record, no table and no s,
    and costs no epsilon. As a sum of covariances it is positive semidefinite, so it can be part of the penalty P of a
    private head (`releases.mechanisms`).
    """
    summed = np.zeros((encoder.columns,) * 2)
    for rows in level_encodings(encoder, edited):
        centred = rows - rows.mean(axis=0)
        summed += 2 / len(rows) * centred.T @ centred
    return summed


def ends(contributions: Contributions, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest sum of contributions to each logit; 0 without mediators."""
    low, high = np.zeros(outputs), np.zeros(outputs)
    for of_levels in contributions:
        low, high = low + of_levels.min(axis=0), high + of_levels.max(axis=0)
    return low, high


def certified_binary(base: np.ndarray, contributions: Contributions) -> np.ndarray:
    """Whether the decision of each record, z > 0, is the same for all values of the mediators.

    base: logits with the mediators at their first levels (records x 1).
    """
    low, high = ends(contributions, 1)
    return np.asarray((base[:, 0] + low[0] > 0) | (base[:, 0] + high[0] <= 0))


def certified_class(base: np.ndarray, contributions: Contributions) -> np.ndarray:
    """The same for several classes (base: records x classes), where the first of the largest logits decides.

    The decided class c must stay ahead of every other class d where the sum of f_c - f_d is smallest; of two equal
    logits the first wins. The class at the first levels is c, because these are values of the mediators, too.
    """
    classes = base.shape[1]
    least = np.zeros((classes, classes))
    for of_levels in contributions:
        least += (of_levels[:, :, None] - of_levels[:, None, :]).min(axis=0)
    decided = base.argmax(axis=1)
    ahead = np.take_along_axis(base, decided[:, None], axis=1) - base + least[decided]
    wins_ties = decided[:, None] <= np.arange(classes)
    return np.asarray(np.where(wins_ties, ahead >= 0, ahead > 0).all(axis=1))


def shifts(values: np.ndarray, base: np.ndarray, contributions: Contributions) -> tuple[np.ndarray, np.ndarray]:
    """How far the mediators can move the prediction of each record of a regression down and up.

    values: the predictions (records x 1). base: the predictions with the mediators at their first levels.
    """
    low, high = ends(contributions, 1)
    down, up = values[:, 0] - (base[:, 0] + low[0]), base[:, 0] + high[0] - values[:, 0]
    return np.maximum(down, 0.0), np.maximum(up, 0.0)
