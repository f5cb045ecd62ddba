"""Data in, models out, in this process: `load`, `train`, `discover`, `evaluate`. Runs under MPC are in `runs`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from secure_sccvfl.api.frames import Entry, Holder, read_frames, to_frames, write_files
from secure_sccvfl.api.trained import Discovered, TrainedModel
from secure_sccvfl.config.rules import WEIGHTS
from secure_sccvfl.config.sections import wire_names
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.catalogue import load as load_dataset
from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import id_rule, read_description
from secure_sccvfl.data.party import part_of
from secure_sccvfl.data.party_data import benchmark_schema
from secure_sccvfl.data.splits import SplitKind, expected_training_records, make_split
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.evaluation.methods import prepare
from secure_sccvfl.evaluation.scoring import one_thread
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.protocols.config import ConfigError, unknown_name
from secure_sccvfl.releases.default_budget import default_epsilon
from secure_sccvfl.releases.noise import GaussianNoise
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.options import DISCOVERY_OPTIONS, RunOptions
from secure_sccvfl.training.trainer import AwareTrainer, Trainer

if TYPE_CHECKING:
    from secure_sccvfl.api.runs import Run

_PRIVACY = ("refreshes", "late_refreshes", "noise", "private_model", "head_share")
_DISCOVERY = (*_PRIVACY, *DISCOVERY_OPTIONS)
_ELSEWHERE = ("mode", "card", "generator_seed", *WEIGHTS, "dp_steps", "dp_sampling")
"""Options of the model and of training that `train` has an argument for, or that only runs under MPC use."""
_METHOD = (*_DISCOVERY, *(name for name in wire_names("model", "training") if name not in _ELSEWHERE))


@dataclass(frozen=True, repr=False)
class Data:
    """Records of all parties, and what a run under MPC would read them from.

    source: a name or a path, or None for DataFrames given here. read_off: the parts of the public dictionary that
    were read off the records, which is acceptable only for data that may be pooled.
    """

    dataset: Dataset
    source: str | None
    id: str = "id"
    label: str = "y"
    read_off: tuple[str, ...] = ()

    def __repr__(self) -> str:
        parties = ", ".join(f"{p.name} ({len(p.features)} columns)" for p in self.dataset.parties)
        return f"<Data {self.dataset.name}: {self.dataset.n} records, {self.dataset.task}; {parties}>"

    def __len__(self) -> int:
        return self.dataset.n

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """What each party would bring: its columns, and the label or s where it is the holder.

        >>> list(load("heart").frames["payer"].columns)
        ['id', 'fbs', 'restecg', 'thal']
        """
        return to_frames(self.dataset, self.id, self.label)

    @property
    def frame(self) -> pd.DataFrame:
        """All features side by side with the id: what `predict` takes."""
        features = {f.name for f in self.dataset.features}
        parts = [table.set_index(self.id) for table in self.frames.values()]
        joined = pd.concat([part[[c for c in part if c in features]] for part in parts], axis=1)
        return joined.reset_index()

    def write(self, folder: str | Path) -> Path:
        """One CSV file per party and a description next to them; returns the path of the description."""
        return write_files(self.dataset, Path(folder), self.id, self.label)


def load(
    name: str | Path | None = None,
    *,
    frames: Mapping[str, pd.DataFrame] | None = None,
    label: Holder | None = None,
    protected: Holder | Sequence[Holder] | None = None,
    features: Mapping[str, Entry] | None = None,
    id: str = "id",
    task: str | None = None,
) -> Data:
    """A data set by name, from the description of files, or from one DataFrame per party.

    `name`: german, heart, compas, mobility, acs12 or acs12-gender (gender as s); the path of a TOML description; or
    `acs-income:PATH.csv`.

    `frames`: party -> DataFrame. Rows are aligned by the column `id`, or by an index of that name. `label` and
    `protected` say who holds them: `(party, column)`, or `(party, column, values)`. Several protected attributes are
    a list. `features` is the public dictionary: column -> `{"kind": "number", "low": 0, "high": 50000}` or
    `{"kind": "category", "categories": ["a", "b"], "missing": True}`. Columns that it does not name are left out.
    `name` may give the data a name.

    Without `features`, all other columns are features, and their ranges and categories are read off the records; so
    are classes and groups that are not given. Such a dictionary reveals values. It is for data that may be
    pooled, and `run_local` refuses it for any other.

    >>> load("german")
    <Data german: 1000 records, binary; bank (7 columns), employer (6 columns), bureau (6 columns)>
    >>> bank = pd.DataFrame({"id": range(60), "amount": range(60), "late": [0, 1, 1] * 20})
    >>> employer = pd.DataFrame({"id": range(60), "job": ["a", "b", "c"] * 20, "over_40": ["no", "yes"] * 30})
    >>> load(
    ...     frames={"bank": bank, "employer": employer},
    ...     label=("bank", "late", [0, 1]),
    ...     protected=("employer", "over_40", ["no", "yes"]),
    ...     features={
    ...         "amount": {"kind": "number", "low": 0, "high": 100},
    ...         "job": {"kind": "category", "categories": ["a", "b", "c"]},
    ...     },
    ... )
    <Data frames: 60 records, binary; bank (1 columns), employer (1 columns)>
    """
    if frames is None:
        if name is None or any(given is not None for given in (label, protected, features, task)):
            raise DataError("name a data set, or give frames with label and protected")
        if not isinstance(name, (str, Path)):
            raise DataError(f"load takes a name or a path, not {type(name).__name__}: give tables as frames={{...}}")
        return _load_named(str(name))
    if label is None or protected is None:
        raise DataError("frames need label=(party, column) and protected=(party, column)")
    dataset, read_off = read_frames(frames, label, protected, features, id, task, str(name or "frames"))
    column = label["column"] if isinstance(label, Mapping) else label[1]
    return Data(dataset, None, id, column, read_off)


def _load_named(name: str) -> Data:
    """A name of the catalogue or a path; a path becomes absolute, so that it holds in every folder."""
    if is_benchmark(name):
        return Data(load_dataset(name), name)
    path = Path(name).resolve()
    data, spec = load_dataset(str(path)), read_description(path)
    return Data(data, str(path), id_rule(spec["id"], path.name).name, spec["label"]["column"])


def as_data(data: Data | Dataset | str | Path) -> Data:
    """The data of any argument that the functions of this package accept as data."""
    if isinstance(data, Data):
        return data
    if not isinstance(data, (Dataset, str, Path)):
        raise DataError(f"data must be a name, a path or the result of load(frames=...), not {type(data).__name__}")
    return Data(data, None) if isinstance(data, Dataset) else load(data)


def train(
    data: Data | Dataset | str | Path,
    epsilon: float | None = None,
    seed: int = 0,
    *,
    delta: float = 1e-5,
    split: SplitKind = "iid",
    card: str | Path = "",
    aware: bool = False,
    **settings: Any,
) -> TrainedModel:
    """Train on the plaintext engine: the method of a run under MPC, with all columns in this process.

    The records are split by `seed` into training, validation and test part; a private model is trained with the first
    two. Statistics of s and the head get noise for `epsilon` from a seeded generator, so a result can be made again;
    it shows what noise costs, and protects nothing. Without `epsilon` the number of training records decides
    (`default_epsilon`). `private_model=False` trains a head without noise, and then all of `lambdas`.
    `card`: a policy card that fixes roles, or "shipped". `aware`: the model uses s for every decision, as in mode
    `aware` of a run; the card must declare that, and `predict` then needs the column of s. Further settings, as for
    `run_local`: refreshes, late_refreshes, noise, private_model, head_share, and the options of discovery, model and
    training (rule, score, conditional, method, head, generator, lambdas, take_lambda, guard, steps...).

    >>> model = train("heart", lambdas=(8.0,))
    >>> model.roles["thal"]
    'M'
    >>> model.predict(load("heart").frame).tolist()[:4]
    ['0', '1', '1', '0']
    """
    data = as_data(data)
    mode = {"mode": "aware"} if aware else {}
    if epsilon is None:
        private = settings.get("private_model", settings.get("method", "scc") == "scc")
        epsilon = default_epsilon(expected_training_records(len(data)) if private else None)
    options = _options(data, _METHOD, settings, epsilon=epsilon, delta=delta, seed=seed, card=str(card), **mode)
    if aware:
        gradient_mode("aware").check(options, benchmark_schema(data.dataset))
    parties, decided = len(data.dataset.parties), _card(options, data)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        rows = make_split(data.dataset, split, seed)
        budget = options.simulated_budget(parties)
        driver = AwareTrainer if aware else Trainer
        config = options.train_config()
        config = config if "lambdas" in settings else config.as_alternatives()
        ready = prepare(data.dataset, rows, seed, config, budget, decided, driver)
    return TrainedModel(ready, data.id)


def evaluate(model: TrainedModel | Run) -> pd.DataFrame:
    """Figures of the test part with intervals, and those of the majority: see `TrainedModel.evaluate`."""
    if isinstance(model, TrainedModel):
        return model.evaluate()
    if not hasattr(model, "metrics"):
        raise TypeError(f"evaluate takes a model of train or a Run, not {type(model).__name__}")
    return model.metrics


def discover(
    data: Data | Dataset | str | Path, epsilon: float = 4.0, seed: int = 0, *, delta: float = 1e-5, **settings: Any
) -> Discovered:
    """Simulate private discovery: which columns depend on s, by noisy tables of all records.

    Further settings: refreshes, late_refreshes, noise, and those of discovery (rule, score, conditional...). The
    noise is seeded: a simulation protects nothing.

    >>> discover("heart", epsilon=8).scores["score"].head(3).to_dict()
    {'thal': 0.4093, 'exang': 0.1656, 'chol': 0.1351}
    """
    data = as_data(data)
    options = _options(data, _DISCOVERY, settings, epsilon=epsilon, delta=delta, seed=seed)
    whole, config = data.dataset, options.train_config().discovery
    noise = GaussianNoise(options.simulated_budget(len(whole.parties)), seed)
    rows = np.arange(whole.n)
    with one_thread():
        parts = make_split(whole, "iid", seed)
        if config.holds_out:
            rows = np.sort(np.concatenate([parts.train, parts.test]))
        given, owner = (noise, part_of(whole, rows), len(whole.features), config, seed), whole.owners
        discovery = Discovery.plain(*given, owners=owner, may_be_missing=whole.may_be_missing)
        beyond = discovery.conditional(part_of(whole, parts.validation).parties)
        releases = options.privacy.table_releases + options.privacy.late_table_releases + 1
        assignment = discovery.proposed(releases, beyond)
    lines = [
        {
            "feature": name,
            "party": owner[name],
            "score": round(value, 4),
            "role": assignment.roles.of[name],
            "confidence": assignment.confidence[name],
            **({"missing depends on s": name in assignment.missing_depends} if whole.may_be_missing else {}),
        }
        for name, value in sorted(assignment.scores.items(), key=lambda item: -item[1])
    ]
    return Discovered(pd.DataFrame(lines).set_index("feature"), noise.charges[-1].epsilon_after)


def _card(options: RunOptions, data: Data) -> PolicyCard | None:
    card = options.policy()
    if card is not None:
        card.check({f.name for f in data.dataset.features}, data.dataset.name)
    return card


def _options(data: Data, accepted: Sequence[str], settings: Mapping[str, Any], **given: Any) -> RunOptions:
    if unknown := sorted(set(settings) - set(accepted)):
        raise ConfigError(unknown_name("setting", unknown[0], (*accepted, *given)))
    options = RunOptions.of({**settings, **given, "pooled": True})
    return options.changed(dataset=data.dataset.name)
