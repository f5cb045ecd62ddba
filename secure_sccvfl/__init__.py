"""Selective counterfactual consistency in vertical federated learning, computed in secret.

A short tour. Parties hold different columns about the same people; one holds the label, one a protected attribute s.

    import secure_sccvfl as scc

    data = scc.load("german")                   # or "loans.toml", or frames={"bank": df, ...}
    model = scc.train(data, epsilon=8, seed=0)  # plaintext engine, in this process
    model.roles                                 # which columns move with s (M), stand for it (P), or neither (N)
    model.evaluate()                            # accuracy, flips, gaps; with intervals, and the majority's beside
    model.predict(data.frame)
    scc.discover(data, epsilon=4).scores        # which columns depend on s, by noisy statistics

    run = scc.run_local(data, folder="runs/a")  # in secret: a process for each party, and the dealer
    run = scc.Run.open("runs/a")
    run.metrics, run.privacy(), run.verify(), run.page

`SCCClassifier` is the same training as a scikit-learn estimator. `docs/tutorial.md` goes from three CSV files to a
report. Programs for one process per host are in `launch`.

Importing this package imports no library; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secure_sccvfl.api.estimator import SCCClassifier
    from secure_sccvfl.api.functions import discover, evaluate, load, train
    from secure_sccvfl.api.runs import Run, run_local

    __version__: str

__all__ = ["Run", "SCCClassifier", "__version__", "discover", "evaluate", "load", "run_local", "train"]

_PLACES = {
    "discover": "api.functions",
    "evaluate": "api.functions",
    "load": "api.functions",
    "train": "api.functions",
    "Run": "api.runs",
    "run_local": "api.runs",
    "SCCClassifier": "api.estimator",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("secure-sccvfl")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
