"""A whole secure run on this machine: train and evaluate under MPC, compare, report.

The first session trains and leaves each party its part of the model. The second loads these parts and opens test
metrics. In between, on public benchmark data, counterfactual models make edited records, and a third session
scores a few of them for the page. Last come report.json, the privacy report, the policy card, the page, and the
run's log with the digests of all of them.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.results import Report
from secure_sccvfl.runs.local.processes import Ending, Event, context, prepare, run_job, without_the_script
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.options import RunOptions

SEEDS = 10
MOST_RECORDS = 5000
"""Larger data get no further seeds unless they are asked for: a seed takes minutes there."""


class WholeRun:
    """Training, evaluation and report of one run in one folder."""

    def __init__(
        self,
        folder: Path,
        config: SessionConfig,
        certs: Path | None = None,
        event: Event = lambda event: None,
        debug: bool = False,
        transcript: bool = False,
    ) -> None:
        self.folder, self.config, self.certs, self.event, self.debug = folder, config, certs, event, debug
        self.transcript = transcript
        self.options = RunOptions.of(config.options)
        self.parties = len(config.parties)
        self.options.check(self.parties)

    def train(self) -> Ending:
        """The first session; a folder with checkpoints is resumed if the options say so."""
        return run_job(self.config, self.folder, self.certs, self.event, self.debug, self.transcript)

    def finish(self, pooled_evaluation: bool = True, seeds: int | None = None) -> Report:
        """Evaluate, compare with baselines, score examples, and write the report's files; returns the report.

        `seeds`: how many seeds of the plaintext engine give the frontier its intervals; None: as fits the data.
        """
        from secure_sccvfl.reports.collect import build, seal_results, write_results
        from secure_sccvfl.reports.folders import set_aside

        folder = RunFolder(self.folder)
        trained = folder.result()
        for session in ("evaluation", "examples"):
            set_aside(self.folder, session)
        compared: dict[str, Any] = {}
        drawn: dict[str, list[dict[str, Any]]] = {}
        # Baselines, counterfactual models and further seeds read records exactly: with noisy evaluation nothing may.
        pooled = self.options.data.pooled and pooled_evaluation and self.options.evaluation.kind == "exact"
        further = seeds_of(self.options, sum(trained["rows"].values()), seeds) if pooled else range(0)
        with plaintext_seeds(self.options, self.parties, further) as waiting:
            if pooled:
                compared, drawn = self._compare(trained)
            self.evaluate().check(self.folder / "evaluation")
            if frontier := self._frontier(waiting, trained):
                compared["frontier"] = frontier
        failed = frontier.get("failed") or {k: checks["failed"] for k, checks in compared.get("judges", {}).items()}
        if model := next((name for name, records in drawn.items() if records and not failed.get(name)), None):
            receiver = trained["parties"].index(trained["data"]["label"]["holder"])
            compared["examples"] = {**self._examples(drawn[model], receiver), "model": model}
        compared["label_inference"] = self._label_inference()
        report = build(folder, compared)
        write_results(self.folder, report, self.options.policy(), datetime.date.today())
        seal_results(self.folder, report)
        return report

    def _frontier(self, waiting: list[Future[dict[str, Any] | None]], trained: dict[str, Any]) -> dict[str, Any]:
        """Accuracy and flips along lambda, with intervals over further seeds; empty without any."""
        if not waiting:
            return {}
        from secure_sccvfl.evaluation.frontier import joined

        results = []
        for number, seed in enumerate(waiting):
            self.event({"step": "further seeds (plaintext)", "number": number, "total": len(waiting)})
            results.append(seed.result())
        return joined(results, rule_in_words(self.options), trained["lambda"])

    def evaluate(self) -> Ending:
        return self._with_model("evaluate", "evaluation")

    def _with_model(self, job: str, subfolder: str, **more: Any) -> Ending:
        options = {k: v for k, v in self.config.options.items() if k != "resume"}
        config = replace(self.config, job=job, options={**options, "model": str(self.folder.resolve()), **more})
        return run_job(config, self.folder / subfolder, self.certs, self.event, self.debug)

    def _examples(self, drawn: list[dict[str, Any]], receiver: int) -> dict[str, Any]:
        """Decisions of the secure model for a few public records before and after a counterfactual."""
        from secure_sccvfl.evaluation.examples import choose, read_predictions, scored, write_records

        folder = self.folder / "examples"
        folder.mkdir(exist_ok=True)
        group = self.options.schema(self.parties).protected[0].name if self.options.training.mode == "aware" else ""
        write_records(folder / "records.csv", drawn, group)
        self._with_model("predict", "examples", records=str((folder / "records.csv").resolve()), scores=True).check(
            folder
        )
        return choose(scored(drawn, read_predictions(folder / f"party-{receiver}" / "predictions.csv")))

    def _compare(self, trained: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
        """Hand edited records to the parties; baselines and validity checks for the report.

        And records for examples, by counterfactual model.
        """
        import torch

        from secure_sccvfl.data.party_data import pooled
        from secure_sccvfl.data.splits import make_split
        from secure_sccvfl.evaluation.examples import draw
        from secure_sccvfl.evaluation.pooled import compare, hand_out, run_counterfactuals
        from secure_sccvfl.policy.roles import Roles

        torch.set_num_threads(1)  # small networks: more threads are slower
        self.event({"step": "counterfactual models and baselines (plaintext)", "number": 0, "total": 1})
        options = self.options
        data, seed = pooled(options.data.dataset, self.parties), options.data.seed
        split, roles = make_split(data, options.data.split, seed), Roles(trained["roles"], trained["proxies"])
        models = run_counterfactuals(data, split, roles, seed)
        hand_out(data, models, self.folder)
        drawn = {name: draw(data, split.test, of, seed) for name, of in models.counterfactuals.items()}
        budget = options.simulated_budget(self.parties)
        config = replace(options.train_config(), evaluation="exact")
        arguments = (data, split, roles, models, config, budget, seed, options.training.mode)
        return asdict(compare(*arguments, card=options.policy())), drawn

    def _label_inference(self) -> list[dict[str, Any]]:
        """What the opened gradients reveal, party by party; empty in sealed mode."""
        from secure_sccvfl.audit.attacks.labels import labels_from_kept
        from secure_sccvfl.data.party_data import pooled
        from secure_sccvfl.data.splits import make_split

        if MODES.get(self.options.training.mode).labels == "hidden" or not self.options.data.pooled:
            return []
        data, split = pooled(self.options.data.dataset, self.parties), self.options.data.split
        rows = self.options.train_config().training_rows(make_split(data, split, self.options.data.seed))
        label = data.label.values[rows]
        rates = [labels_from_kept(self.folder / f"party-{rank}", label) for rank in range(self.parties)]
        return [
            {"party": rank, "rate": rate.rate, "low": rate.low, "high": rate.high, "chance": rate.chance}
            for rank, rate in enumerate(rates)
            if rate is not None
        ]


def natural_parties(dataset: str) -> int:
    from secure_sccvfl.data.catalogue import is_benchmark, load
    from secure_sccvfl.data.party_data import own_schema

    return len(load(dataset).parties if is_benchmark(dataset) else own_schema(Path(dataset)).parties)


def with_usual_epsilon(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a training; on public data with the epsilon of `default_epsilon`, if they name none.

    The number of training records is public there. For other data the default of `RunOptions` stays: it is that of
    a number which is not public.
    """
    from secure_sccvfl.data.catalogue import is_benchmark, load
    from secure_sccvfl.data.splits import expected_training_records
    from secure_sccvfl.releases.default_budget import default_epsilon

    dataset = options["dataset"]
    if "epsilon" in options or not is_benchmark(dataset) or not RunOptions.of(options).privacy.private_model:
        return dict(options)
    return {**options, "epsilon": default_epsilon(expected_training_records(load(dataset).n))}


def seeds_of(options: RunOptions, records: int, number: int | None) -> range:
    """The seeds next to a run: its own and the next ones. They are of the sealed method, so of no other mode."""
    count = (SEEDS if records <= MOST_RECORDS else 0) if number is None else number
    count = count if options.training.mode == "sealed" else 0
    return range(options.data.seed, options.data.seed + count)


@contextmanager
def plaintext_seeds(options: RunOptions, parties: int, seeds: range) -> Iterator[list[Future[dict[str, Any] | None]]]:
    """The same method on other splits, which gives figures an interval: trained in the clear while the body runs.

    Data, card, settings and budget are those of the run. After an error in the body, pending seeds are dropped.
    """
    from secure_sccvfl.evaluation.frontier import FrontierSeed, run_frontier_seed

    if not seeds:
        yield []
        return
    config = replace(options.train_config(), evaluation="exact").as_alternatives()
    data, budget, card = options.data, options.simulated_budget(parties), options.policy()
    jobs = [FrontierSeed(data.dataset, parties, data.split, seed, config, budget, card) for seed in seeds]
    workers = min(len(seeds), os.cpu_count() or 1)
    prepare({})
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        with without_the_script():  # the pool starts its processes here
            waiting = [pool.submit(run_frontier_seed, job) for job in jobs]
        try:
            yield waiting
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def rule_in_words(options: RunOptions) -> str:
    """How lambda is chosen, for people."""
    return f"lambda {options.train_config().taken:g}, the same for all data"
