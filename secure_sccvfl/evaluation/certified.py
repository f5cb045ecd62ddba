"""The certificate (`models.certificate`) in plaintext: of models by their weights, of other methods by probing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Party
from secure_sccvfl.evaluation.methods import Fitted, Prepared, linear_head, why_not_additive
from secure_sccvfl.evaluation.scoring import Predictor, Scored
from secure_sccvfl.models.certificate import (
    CertificateError,
    Contributions,
    at_first_level,
    certified_binary,
    certified_class,
    level_encodings,
    level_inputs,
    shifts,
)
from secure_sccvfl.training.model import Model


def model_contributions(model: Model, parties: tuple[Party, ...], edited: Collection[str]) -> Contributions:
    """What the levels of these features add to the logits of a model; CertificateError if it is not additive."""
    if reason := why_not_additive(model):
        raise CertificateError(f"no certificate: {reason}")
    weight, _ = linear_head(model, parties)
    contributions, start = [], 0
    for party in parties:
        encoder = model.encoders[party.rank]
        here = weight[start : start + encoder.columns] / model.temperature
        contributions += [rows @ here for rows in level_encodings(encoder, edited)]
        start += encoder.columns
    return contributions


def predictor_contributions(predict: Predictor, parties: Sequence[Party], edited: Collection[str]) -> Contributions:
    """The same for any predictor that is additive in the features and linear between public cuts, by its answers."""
    return [predict(inputs) - predict(inputs[:1]) for inputs in level_inputs(joint_layout(parties), edited)]


def joint_layout(parties: Sequence[Party]) -> Layout:
    """The input space of all parties side by side."""
    return Layout.of([block.feature for party in parties for block in party.layout.blocks])


def base_logits(
    predict: Predictor, parties: Sequence[Party], inputs: np.ndarray, edited: Collection[str]
) -> np.ndarray:
    """Logits of records of all parties with these features at their first levels."""
    return predict(at_first_level(joint_layout(parties), inputs, edited))


def certified_records(base: np.ndarray, contributions: Contributions, task: Task) -> np.ndarray:
    """One bit for each record: can no values of the mediators change its decision?"""
    if task == "regression":
        raise CertificateError("a regression decides nothing: its certificate is the largest shift")
    return (certified_binary if task == "binary" else certified_class)(base, contributions)


def certificate_scores(ready: Prepared, fitted: Fitted) -> list[Scored]:
    """`certified`: the share of test records that are certified. It is 1 if there are no mediators.

    Of a regression: `max_shift_down` and `max_shift_up`, the largest shifts among the test records. Nothing for a
    method that is not additive in the features.
    """
    if not fitted.additive:
        return []
    inputs, edited, task = ready.inputs[ready.split.test], ready.roles.edited, ready.data.task
    contributions = predictor_contributions(fitted.predict, ready.parties, edited)
    base = base_logits(fitted.predict, ready.parties, inputs, edited)
    if task == "regression":
        down, up = shifts(fitted.predict(inputs), base, contributions)
        return [Scored(None, "max_shift_down", float(down.max())), Scored(None, "max_shift_up", float(up.max()))]
    return [Scored(None, "certified", float(certified_records(base, contributions, task).mean()))]
