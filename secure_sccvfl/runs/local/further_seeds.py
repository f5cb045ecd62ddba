"""Further seeds of the plaintext engine beside a run in secret, in processes of this machine.

One run has one split of the records. The same method on other splits gives its figures an interval. Only for data
that may be pooled.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from secure_sccvfl.training.modes.options import RunOptions

if TYPE_CHECKING:
    from secure_sccvfl.evaluation.frontier import FrontierSeed

SEEDS = 10
MOST_RECORDS = 5000
"""Larger data get no further seeds unless they are asked for: a seed takes minutes there."""


def seeds_of(options: RunOptions, records: int, wanted: int | None) -> range:
    """The seeds beside a run: its own and the next ones. They are of the sealed method, so of no other mode."""
    count = (SEEDS if records <= MOST_RECORDS else 0) if wanted is None else wanted
    count = count if options.training.mode == "sealed" else 0
    return range(options.data.seed, options.data.seed + count)


def jobs_of(options: RunOptions, parties: int, seeds: range) -> list[FrontierSeed]:
    """The same data, card, settings and budget as the run's. Decisions are opened in the clear, so exactly."""
    from secure_sccvfl.evaluation.frontier import FrontierSeed

    config = replace(options.train_config(), evaluation="exact").as_alternatives()
    budget, card = options.simulated_budget(parties), options.policy()
    return [
        FrontierSeed(options.data.dataset, parties, options.data.split, seed, config, budget, card) for seed in seeds
    ]


@contextmanager
def beside(options: RunOptions, parties: int, seeds: range) -> Iterator[list[Future[dict[str, Any] | None]]]:
    """Seeds that are worked on while the body runs; what is not done at its end by an error is dropped."""
    from secure_sccvfl.evaluation.frontier import run_frontier_seed

    if not seeds:
        yield []
        return
    workers = min(len(seeds), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(run_frontier_seed, job) for job in jobs_of(options, parties, seeds)]
        try:
            yield waiting
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def rule_in_words(options: RunOptions) -> str:
    """How lambda is chosen, for people."""
    if options.training.flip_target > 0:
        limit = f"at most {options.training.flip_target:.1%} of decisions flip"
    elif options.training.gap_target == 0:
        return f"lambda {options.train_config().taken:g}, the same for all data"
    else:
        limit = f"the gap is at most {options.training.gap_target:.0%} of the logit's spread"
    return f"the smallest lambda at which, on validation records under the run's own edits, {limit}"
