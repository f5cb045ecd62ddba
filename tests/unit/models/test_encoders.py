"""Which columns of an encoding can change with a feature."""

import numpy as np
import pytest

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.encoders import fit_encoder, reached

LAYOUT = Layout.of(
    (
        Feature("age", "number", low=0, high=100, missing=True),
        Feature("job", "category", categories=("a", "b", "c")),
        Feature("pay", "number", low=0, high=10),
    )
)


@pytest.mark.parametrize("names", [{"age"}, {"job", "pay"}, set()])
def test_a_change_of_some_features_reaches_no_other_columns(names):
    rng = np.random.default_rng(0)
    cells = np.column_stack([rng.uniform(0, 100, 60), rng.integers(0, 3, 60), rng.uniform(0, 10, 60)])
    cells[:20, 0] = np.nan
    changed = cells.copy()
    for at, block in enumerate(LAYOUT.blocks):
        if block.feature.name in names:
            changed[:, at] = rng.permutation(cells[:, at])
    encoder = fit_encoder(LAYOUT, LAYOUT.encode(cells))
    moved = (encoder(LAYOUT.encode(changed)) != encoder(LAYOUT.encode(cells))).any(axis=0)
    mask = reached(LAYOUT, names)
    assert len(mask) == encoder.columns
    assert not moved[~mask].any()
    assert moved.any() == bool(names)
