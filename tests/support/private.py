"""Private heads without their noise, so that both engines can be compared to the last digits.

No setting of a run reaches this: it replaces functions from outside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases.mechanisms import HeadNoise, price_head
from secure_sccvfl.training.modes.base import spread_of
from secure_sccvfl.training.modes.options import RunOptions

NOTHING = 1e-300


def silence(patch: pytest.MonkeyPatch) -> None:
    """Heads in secret sessions of this process carry no noise; the charge is as ever."""

    def nothing(session: Session, kind: str, sigma: float, shape: tuple[int, int], bits: int) -> Any:
        return session.public(np.zeros(shape), bits)

    patch.setattr(second_order, "noise_of_heads", nothing)


class Silent:
    """Charges the head of a plaintext run on paper only: the ridge is that of the run, the noise is nothing."""

    def __init__(self, options: RunOptions, schema: Schema) -> None:
        self.options, self.schema = options, schema

    def charge_heads(self, count: int) -> HeadNoise:
        spread: Any = spread_of(self.options, self.schema)
        plan, budget = spread.heads
        priced = price_head(plan, budget, count, "dealer", len(self.schema.parties), "records")
        return replace(priced.noise, sigma=NOTHING, output=NOTHING)
