"""Selective counterfactual consistency in vertical federated learning, computed under MPC.

Parties hold different columns about the same people; one holds the label, one a protected attribute s.

    import secure_sccvfl as scc

    data = scc.load("german")                   # or "loans.toml", or frames={"bank": df, ...}
    model = scc.train(data, epsilon=8, seed=0)  # plaintext engine, in this process
    model.roles                                 # per column: mediator (M), proxy (P) or held fixed (N)
    model.evaluate()                            # accuracy, flip rates, gaps, with intervals; the majority's accuracy
    model.frontier()                            # the same figures for every lambda; by_group: any metric by group
    model.predict(data.frame)
    scc.discover(data, epsilon=4).scores        # which columns depend on s, by noisy statistics

    run = scc.run_local(data, folder="runs/a")  # under MPC: a process for each party, and the dealer
    run = scc.Run.open("runs/a")
    run.metrics, run.privacy(), run.verify(), run.page

`SCCClassifier` is the same training as a scikit-learn estimator. `docs/tutorial.md` goes from three CSV files to a
report. Programs for one process per host are in `launch`.

**Path of a column** (defaults; 2 and 3 are local at its owner, 1 and 4 are in part):

1. `data.party_data` reads the owner's CSV file by the public description and splits records by a hash of their id;
   `runs.alignment` finds the common rows. With `hidden`, the default of own data, no party learns which of its
   records are common: encodings become shares, a shared membership mask leaves the others out, and the number of
   different records is opened.
2. `data.layout` maps cells to input space: numbers to [0, 1], categories one-hot. `data.party` gives public bins.
3. `models.encoders` maps input space to columns of the head, before roles are known. The encoding stays at its owner.
4. `discovery` releases its noisy table of s (below) and proposes a role: mediator, proxy, or held fixed.
5. `training.trainer` passes it to `training.secure`: it enters the fused head under a one-time mask
   (`protocols.steps.head`), and products with secret-shared weights, labels and penalty are shares. A private head
   is charged before its steps (`Charger.charge_heads`). It is trained on training and validation records together,
   for one public lambda, with the noise of objective perturbation by the dealer, and a second, smaller noise on the
   weights. All learn one check of the finished head: whether a score is out of range, or training has not converged.
6. `runs.model_files` keeps at each party its encoder, its tables and its share of the weights.
7. `runs.evaluate` opens test figures. `runs.predict` opens a new person's decision to one receiver (by default
   the holder of the label), once. Asked again, the receiver reads the recorded answer.

**Path of a contingency table** of s and that column:

1. `runs.train` -> `training.modes` -> `training.trainer` -> `discovery.discovery` ->
   `discovery.noisy_tables.release_tables`.
2. `discovery.secure_statistics` multiplies the owner's bins with the holder's groups under MPC
   (`protocols.operations.group_table`).
3. `releases.charging.Charger` asks each party's budget and writes the privacy cost to each ledger (`accounting`).
   The tables of all columns are one release; there is one before and one during joint training, and they are
   averaged. Tables and head share epsilon (`releases.mechanisms`). Where a card decides every column, only mediators
   and penalised proxies have tables.
4. Dealer and holder of s each add discrete Gaussian noise of half the charged variance; the sum is opened to the
   column's owner alone (`NoisyTables`), who keeps it for later runs (`runs.cached_tables`).
5. From the same noisy shares the HSIC score and group sizes are computed under MPC and opened to all;
   `discovery.decisions` proposes roles, which a policy card (`policy`) may override.
6. Mediators: `models.table_generator` makes a counterfactual generator of the table, and `models.table_gram` the
   expected Gram matrix of encoded changes, at the owner. Proxies: the trainer takes a direction from the table. Three
   kinds of checks that follow from tables are opened to all: which columns counterfactuals move (a mediator that does
   not move becomes N), how far (if two parties have mediators), and the strength of the proxy penalty.
7. `training.secure` shares both as the consistency and the proxy penalty of the head. Neither touches records again.

Importing this package imports no library; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secure_sccvfl.api.estimator import SCCClassifier, certified_scorer, flip_scorer
    from secure_sccvfl.api.figures import by_group
    from secure_sccvfl.api.functions import discover, evaluate, load, train
    from secure_sccvfl.api.runs import Run, run_local

    __version__: str

__all__ = [
    "Run",
    "SCCClassifier",
    "__version__",
    "by_group",
    "certified_scorer",
    "discover",
    "evaluate",
    "flip_scorer",
    "load",
    "run_local",
    "train",
]

_PLACES = {
    "discover": "api.functions",
    "evaluate": "api.functions",
    "load": "api.functions",
    "train": "api.functions",
    "Run": "api.runs",
    "run_local": "api.runs",
    "SCCClassifier": "api.estimator",
    "flip_scorer": "api.estimator",
    "certified_scorer": "api.estimator",
    "by_group": "api.figures",
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
