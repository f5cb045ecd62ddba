"""`bench.py heads`: a network as the head next to the linear one, on German.

Plaintext: both heads on the same splits, by seed, without noise in the model; figures of test records by the judges
that training never saw. Under MPC: one training of each, its rounds and bytes, and how far its logits are from the
plaintext engine on the same releases.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from accounting.tables import Table, page
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.research.benchmarks.systems import PARTIES, Row, Tell
from secure_sccvfl.research.benchmarks.trainings import whole
from secure_sccvfl.training.modules import HIDDEN, MODULE_DRAWS, MODULE_STEPS

DATASET, SEEDS = "german", range(600, 610)
HEADS: dict[str, dict[str, Any]] = {
    "linear": {"private_model": False, "lambdas": (3.0,)},
    "mlp": {"private_model": False, "head": "mlp"},
}
SHOWN = ("acc", "logloss", "fr_all", "fr_kr_all", "fr_null_all", "fr_null_kr_all")


def measure(tell: Tell, train: Callable[..., Any]) -> dict[str, Any]:
    """Plaintext rows by head and seed, a secure row for each head, and what they were made with.

    train: that of `secure_sccvfl.api.functions`.
    """
    plain = [plain_row(head, seed, tell, train) for seed in SEEDS for head in HEADS]
    secure = [secure_row(head, tell) for head in HEADS]
    return {"made": made_with(), "seeds": list(SEEDS), "plain": plain, "secure": secure}


def plain_row(head: str, seed: int, tell: Tell, train: Callable[..., Any]) -> Row:
    tell(f"{DATASET}, {head}, seed {seed} (plaintext)")
    figures = train(DATASET, seed=seed, **HEADS[head]).evaluate()["value"]
    return {"head": head, "seed": seed, **{name: float(figures[name]) for name in SHOWN}}


def secure_row(head: str, tell: Tell, seed: int = SEEDS[0]) -> Row:
    """One training under MPC, and the plaintext engine on what it released."""
    tell(f"{DATASET}, {head}, seed {seed}, {PARTIES} parties")
    options = {**HEADS[head], "seed": seed}
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        folder = Path(place) / "run"
        ours = whole.secure(DATASET, PARTIES, folder, patience=600.0, **options)
        reference = whole.plain(DATASET, PARTIES, folder, **options)
    found, expected = reference.logits()
    data = pooled(DATASET, PARTIES)
    test = make_split(data, "iid", seed).test
    label = data.label.values[test]
    right = {name: float(((of[test, 0] > 0) == label).mean()) for name, of in (("ours", found), ("plain", expected))}
    error = {"max_error": float(np.abs(found - expected).max()), "mean_error": float(np.abs(found - expected).mean())}
    return {"head": head, "seed": seed, **ours, **error, "acc": right["ours"], "plain_acc": right["plain"]}


def made_with() -> dict[str, str]:
    """Commit, versions and date."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    packages = {name: version(name) for name in ("torch", "numpy", "crypten")}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "commit": found.stdout.strip() or "unknown",
        "date": today,
        "python": platform.python_version(),
        **packages,
    }


def markdown(result: dict[str, Any], command: str) -> str:
    """Means with intervals over seeds, paired differences, one secure training each, and every seed."""
    made, rows = result["made"], result["plain"]
    versions = ", ".join(f"{name} {made[name]}" for name in ("python", "torch", "numpy", "crypten"))

    def of(head: str, name: str) -> np.ndarray:
        return np.array([row[name] for row in rows if row["head"] == head])

    means = [(head, *(_mean(of(head, name)) for name in SHOWN)) for head in HEADS]
    means.append(("mlp - linear", *(_mean(of("mlp", name) - of("linear", name), sign="+") for name in SHOWN)))
    secure = [
        (
            *(
                row["head"],
                row["steps"],
                row["rounds"],
                f"{row['bytes'] / 1e6:.1f}",
                f"{row['dealer_bytes'] / 1e6:.1f}",
            ),
            *(f"{row['seconds']:.1f}", f"{row['acc']:.4f}", f"{row['plain_acc']:.4f}", f"{row['max_error']:.4f}"),
        )
        for row in result["secure"]
    ]
    each = [(row["seed"], row["head"], *(f"{row[name]:.4f}" for name in SHOWN)) for row in rows]
    return page(
        f"Made by `{command}` on {os.cpu_count() or 1} cores, commit {made['commit'][:12]}, {made['date']};\n"
        f"{versions}.",
        f"{DATASET}, lambda 3, models without noise. `mlp`: {HIDDEN} hidden units, {MODULE_STEPS} steps, at most\n"
        f"{MODULE_DRAWS} counterfactuals of each training record. Plaintext engine, seeds {result['seeds'][0]} to\n"
        f"{result['seeds'][-1]}: mean and 95 % interval over seeds, differences paired by seed. Flips (`fr`) are by\n"
        "two judges, and with s shuffled (`fr_null`).",
        Table(("head", *SHOWN), means),
        f"One training under MPC each, seed {result['secure'][0]['seed']}, {PARTIES} parties: discovery,\n"
        "counterfactuals and training. MB: of the mean party, to its peers, and to and from the dealer. Error:\n"
        "largest difference of a calibrated logit, over all records, from the plaintext engine on the same releases.",
        Table(("head", "steps", "rounds", "MB to peers", "MB dealer", "s", "acc", "plaintext acc", "error"), secure),
        "Every seed:",
        Table(("seed", "head", *SHOWN), each),
    )


def _mean(values: Sequence[float] | np.ndarray, sign: str = "") -> str:
    """Mean with its 95 % interval (Student's t for ten seeds)."""
    found = np.asarray(values)
    half = 2.262 * found.std(ddof=1) / len(found) ** 0.5
    return f"{found.mean():{sign}.4f} ({found.mean() - half:{sign}.4f} to {found.mean() + half:{sign}.4f})"
