"""Which tests depend on chance, and fixed randomness for all others."""

from __future__ import annotations

import ast
import threading
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

from tests.support.randomness import drawn_from

# The examples are the same in every run, and a busy machine may take its time.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("suite")


_PARSING, _parse = threading.Lock(), ast.parse


def _one_at_a_time(*given: Any, **named: Any) -> Any:
    """`ast.parse` of Python 3.11 is not safe in threads; numpy reads the heads of its files with it."""
    with _PARSING:
        return _parse(*given, **named)


ast.parse = _one_at_a_time  # parties of many tests are threads of one process; of a session they are processes


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
