"""What an engine needs for statistics of s; filled by the private discovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from secure_sccvfl.engine import Held


class Statistics(Protocol):
    """Noisy, charged sums by group; see Engine."""

    def group_sums(
        self,
        columns: Mapping[str, np.ndarray],
        groups: Sequence[Held],
        counts: Sequence[int],
        name: str,
        sensitivity: float,
    ) -> tuple[dict[str, np.ndarray], ...]: ...

    def deviation(self, sensitivity: float) -> float: ...
