"""The public facts of a private head, from the dictionary, the settings and the roles that a card decides."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.aware import aware_columns, aware_radius
from secure_sccvfl.models.encoders import plain_columns, public_radius
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.mechanisms import HeadPlan
from secure_sccvfl.training.config import TrainConfig


def head_plan(
    config: TrainConfig,
    layouts: Iterable[Layout],
    task: Task,
    outputs: int,
    *,
    aware: tuple[Roles, int] | None = None,
    units: int = 0,
    tabled: Collection[str] = (),
) -> HeadPlan | None:
    """What the price of a run's heads follows from; None for a model that is not private.

    layouts: of all parties. aware: the roles and the number of groups, of a model that uses s. units: columns that
    each party adds to its plain ones (mode `dp`), of a joint length of at most 1. tabled: the columns whose tables of
    s are released, if not all.
    """
    if not config.private:
        return None
    known = list(layouts)
    columns = sum(plain_columns(block) for layout in known for block in layout.blocks)
    radii = [public_radius(layout) for layout in known]
    if aware is not None:
        radii = [aware_radius(layout, aware[0]) for layout in known]
        columns = sum(aware_columns(layout, *aware) for layout in known)
    if units:
        radii = [float(np.hypot(radius, 1.0)) for radius in radii]
        columns += units * len(known)
    lambdas = (config.taken,) if config.alternatives else config.lambdas
    share = config.share(tabled)
    return HeadPlan.of(radii, columns, outputs * len(lambdas), task, share, lambdas, config.releases_gram)
