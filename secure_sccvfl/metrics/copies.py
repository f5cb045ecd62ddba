"""Edited copies of test records: whose they are, what they weigh, and which figures a judge's copies give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder

NULL = "null_"
"""How the name of a judge begins that was fitted with s shuffled over the records: the null control of that judge."""


@dataclass(frozen=True)
class Copies:
    """Copy i is of record source[i] and counts weight[i]; both are public.

    target: for each record the group that its copies are moved to, or -1 if it has none. The holder of s alone has
    it: of two groups it would tell the record's own.
    """

    source: np.ndarray
    weight: np.ndarray
    target: AtHolder = None


def figures_of_judge(judge: str, task: Task) -> tuple[str, ...]:
    """What is opened about the copies of a judge: of a null control, only what it is a control of."""
    if task == "regression":
        return ("scg",)
    return ("fr",) if judge.startswith(NULL) else ("scg", "fr", "net")
