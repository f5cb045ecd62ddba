"""How tests share two workers: those that start real processes one after another, the others file by file."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = "processes" if item.path.parent.name == "multiprocess" else Path(item.path).stem
        item.add_marker(pytest.mark.xdist_group(group))
