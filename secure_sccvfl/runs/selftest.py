"""The check that a consortium runs before its first job: every kind of MPC operation once.

Inputs are random but public (drawn from the seed in the session file), owned by different parties. Each party opens
the results, compares them with the plain computation, and reports rounds, bytes, time and the largest error.
Nothing private is involved, so opening everything is harmless. Every opening is still a declared release.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.errors import UndeclaredRelease
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.jobs import Progress

Array = npt.NDArray[Any]
_ULP = 2.0**-16


@dataclass(frozen=True)
class Check:
    """One operation: how to compute it under MPC, what it should give, and how far off it may be."""

    name: str
    inputs: tuple[str, ...]
    secret: Callable[..., Any]
    plain: Callable[..., Array]
    tolerance: float


class SelfTest:
    """Options: `seed` of the public inputs, `size` of vectors, `repeat` for long runs."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        unknown = set(config.options) - {"seed", "size", "repeat", "security"}
        if unknown:
            raise ConfigError(f"the self-test has no option {sorted(unknown)[0]!r}")
        self.parties = len(config.parties)
        self.size = int(config.options.get("size", 400))
        self.repeat = int(config.options.get("repeat", 1))
        if self.size < 8 or self.repeat < 1:
            raise ConfigError("the self-test needs size >= 8 and repeat >= 1")
        rng = np.random.default_rng(int(config.options.get("seed", 0)))
        n = self.size
        self.values: dict[str, Array] = {
            "x": rng.normal(size=n) * 5,
            "y": rng.normal(size=n) * 5,
            "z": rng.uniform(-12, 12, size=n),
            "wild": rng.uniform(-1000, 1000, size=n),
            "positive": rng.uniform(0.5, 4, size=n),
            "small": rng.uniform(-2, 2, size=n),
            "whole": rng.integers(-3, 4, size=n).astype(np.float64),
            "matrix": rng.normal(size=(n, 12)),
            "narrow": rng.normal(size=(12, 3)),
            "rows": rng.normal(size=(n // 8, 4)),
        }
        self.owners = {name: index % self.parties for index, name in enumerate(self.values)}
        everyone = tuple(range(self.parties))
        # Results have up to three dimensions; lengths are free because `size` is an option.
        self.releases = {
            dimensions: Release(
                name=f"self-test result, {dimensions} dimensions",
                receivers=everyone,
                shape=(ANY,) * dimensions,
                purpose="compare with the plain computation; inputs are public",
                times=len(self.checks()) * self.repeat,
            )
            for dimensions in (0, 1, 2, 3)
        }

    @classmethod
    def public_plan(cls, config: SessionConfig) -> ReleasePlan:
        """What it opens: nothing of it is about records."""
        return cls(config, 0).plan()

    def plan(self) -> ReleasePlan:
        return ReleasePlan(self.releases.values())

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        shared = {
            name: session.share(value, owner=self.owners[name], shape=value.shape)
            for name, value in self.values.items()
        }
        checks = self.checks() * self.repeat
        rows = []
        for number, check in enumerate(checks):
            progress(check.name, number, len(checks))
            rows.append(self._try(session, check, shared))
        closed = self._plain_ways_closed(shared["x"])
        ok = closed and all(row["ok"] for row in rows)
        return {"parties": self.parties, "rows": rows, "undeclared_openings_refused": closed, "ok": ok}

    def _try(self, session: Session, check: Check, shared: dict[str, Any]) -> dict[str, Any]:
        inputs = [shared[name] for name in check.inputs]
        check.secret(session, *inputs)  # once before timing: tables and libraries are made on first use
        with session.measure(f"self-test {check.name}") as cost:
            before, start = asdict(cost), time.perf_counter()
            result = check.secret(session, *inputs)
            seconds = time.perf_counter() - start
            spent = {name: value - before[name] for name, value in asdict(cost).items()}
        expected = np.asarray(check.plain(*(self.values[name] for name in check.inputs)))
        opened = session.open(result, self.releases[expected.ndim])
        error = float("inf") if opened is None else float(np.abs(opened.numpy() - expected).max())
        cost_of = {"rounds": spent["rounds"], "bytes": spent["sent"], "dealer_bytes": spent["dealer"]}
        errors = {"max_error": error, "tolerance": check.tolerance, "ok": error <= check.tolerance}
        return {"name": check.name, **cost_of, "seconds": seconds, **errors}

    @staticmethod
    def _plain_ways_closed(value: Any) -> bool:
        for way in (value.get_plain_text, value.reveal, lambda: repr(value)):
            try:
                way()
            except UndeclaredRelease:
                continue
            return False
        return True

    def _masked_product(self, session: Session, narrow: Any) -> Any:
        matrix, owner = self.values["matrix"], self.owners["matrix"]
        block = session.owned(matrix, owner=owner, shape=matrix.shape).pinned()
        return block.t() @ (block @ narrow)

    def checks(self) -> list[Check]:
        """Tolerances are derived: inputs are rounded to half a unit, truncation adds at most two.

        Functions that CrypTen approximates (from `exp` on) get the error of its approximation. `exp` is (1 +
        x/256)^256, at x = 2 off by e^2/128 = .058; rounding x/256 and each of eight squares can add 511 e^2 units,
        .058 too.
        """
        value = self.values
        matrix = value["matrix"]
        product, square = (_product_bound(1, value["x"], value[name]) for name in ("y", "x"))
        once = _product_bound(12, matrix, value["narrow"])
        largest = float(np.abs(matrix).max())
        twice = self.size * largest * once + _product_bound(self.size, matrix, matrix @ value["narrow"])

        return [
            Check("share and open", ("x",), lambda s, x: x, lambda x: x, _ULP),
            Check("sum", ("x", "y"), lambda s, x, y: x + y, lambda x, y: x + y, _ULP),
            Check("times public", ("x",), lambda s, x: x * 0.25, lambda x: x * 0.25, 3 * _ULP),
            Check("divide by public", ("x",), lambda s, x: x / 7, lambda x: x / 7, 3 * _ULP),
            Check("product", ("x", "y"), lambda s, x, y: x * y, lambda x, y: x * y, product),
            Check("square", ("x",), lambda s, x: x.square(), lambda x: x * x, square),
            Check("matmul", ("matrix", "narrow"), lambda s, a, b: a.matmul(b), lambda a, b: a @ b, once),
            Check("masked matmul", ("narrow",), self._masked_product, lambda b: matrix.T @ (matrix @ b), twice),
            Check("mean", ("x",), lambda s, x: x.mean(), lambda x: x.mean(), 3 * _ULP),
            Check("less than zero", ("x",), lambda s, x: x < 0, lambda x: (x < 0) * 1.0, 0),
            Check("equal", ("whole",), lambda s, w: w == 1, lambda w: (w == 1) * 1.0, 0),
            Check("relu", ("x",), lambda s, x: x.relu(), lambda x: np.maximum(x, 0), _ULP),
            Check("maximum", ("rows",), lambda s, r: r.max(dim=1)[0], lambda r: r.max(axis=1), 2 * _ULP),
            Check("sigmoid, bounded", ("z",), lambda s, z: s.sigmoid(z, bound=12), _sigmoid, 5e-4),
            Check("sigmoid, clamped", ("wild",), lambda s, w: s.sigmoid(w), _sigmoid, 5e-4),
            Check("tanh, bounded", ("small",), lambda s, v: s.tanh(v, bound=6), np.tanh, 5e-4),
            Check("exp", ("small",), lambda s, v: v.exp(), np.exp, 0.116),
            Check("reciprocal", ("positive",), lambda s, p: p.reciprocal(), lambda p: 1 / p, 1e-3),
        ]


def _product_bound(inner: int, a: Array, b: Array) -> float:
    """Largest error of a sum of `inner` products of rounded factors, truncated once."""
    return float(inner * (np.abs(a).max() + np.abs(b).max() + _ULP) * _ULP / 2 + 2 * _ULP)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))
