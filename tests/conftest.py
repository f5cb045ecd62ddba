"""Which tests depend on chance, and fixed randomness for all others."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from tests.support.randomness import drawn_from

# The examples are the same in every run, and a busy machine may take its time.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    with drawn_from(None if item.get_closest_marker("chance") else item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, Any, Any]:
    """A fixture that tests share does not depend on which of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    name = f"{fixturedef.baseid}::{fixturedef.argname}"
    with drawn_from(None if getattr(fixturedef.func, "fresh", False) else name):
        return (yield)
