"""The results of a run as a tree of frozen dataclasses: what `report.json` holds, read and written here alone.

    report = read(Path("runs/a"))
    report.metrics["acc"], report.privacy.epsilon_rdp, report.data.protected[0].labels

The page, the checks, the API and the screens read this tree. Importing this module imports no numerical library.
Version 2 names its version and has every field. Version 1 left out fields without a value; `read` takes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from secure_sccvfl.policy.roles import Proxies, Role
from secure_sccvfl.protocols.config import COVERS, ConfigError

VERSION = 2
REPORT = "report.json"
Task = Literal["binary", "multiclass", "regression"]
Node = TypeVar("Node")
COUNTED = ("second", "minute", "hour", "day", "week", "month", "year")
"""Units that have a plural."""


class ResultsError(ConfigError):
    """A report.json that is missing or cannot be read."""


def _key(name: str, **settings: Any) -> Any:
    """A field whose name in JSON is a Python keyword."""
    return field(metadata={"key": name}, **settings)


@dataclass(frozen=True)
class Label:
    """The label: its classes with their words, or the range of a regression."""

    holder: str = ""
    meaning: str = ""
    classes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Attribute:
    """A protected attribute: the codes of its groups and their words."""

    name: str = ""
    holder: str = ""
    meaning: str = ""
    groups: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The meaning, without the code of a group in front, or the name."""
        code, _, rest = self.meaning.partition(": ")
        return (rest if code in self.groups else self.meaning) or f"“{self.name}”"


@dataclass(frozen=True)
class Column:
    """A column of the data, with the notes that its owner wrote."""

    kind: str = ""
    meaning: str = ""
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    measurement: str = ""
    manipulability: str = ""
    confounders: str = ""
    relation: str = ""


@dataclass(frozen=True)
class Outcome:
    """A decision about one record, and its score. The decision of a regression is a number."""

    decision: str | float
    score: float


@dataclass(frozen=True)
class Change:
    """A column that a counterfactual changes, as text of a CSV file. size: how far it moves, from 0 to 1."""

    feature: str
    old: str = _key("from")
    new: str = _key("to")
    role: str = "M"
    size: float = 1.0


@dataclass(frozen=True)
class Description:
    """The public words of a data set, and how values and decisions read in them."""

    task: Task
    label: Label
    protected: tuple[Attribute, ...] = ()
    features: Mapping[str, Column] = field(default_factory=dict)
    about: str = ""

    @property
    def positive(self) -> str:
        """The class whose decisions are counted as positive, in words."""
        return (self.label.labels or ("positive",))[-1]

    @property
    def groups(self) -> dict[str, str]:
        """The words of each group of the first protected attribute."""
        return dict(zip(self.protected[0].groups, self.protected[0].labels, strict=True))

    @property
    def classes(self) -> dict[str, str]:
        return dict(zip(self.label.classes, self.label.labels, strict=True))

    @property
    def attribute(self) -> str:
        """The protected attributes in words."""
        return " and ".join(a.words for a in self.protected)

    def name(self, feature: str) -> str:
        return self.features[feature].meaning or feature.replace("_", " ")

    def value(self, feature: str, text: str) -> str:
        """A cell in words: a label, or a number with its unit."""
        column = self.features[feature]
        unit = column.unit + "s" * (column.unit in COUNTED and text not in ("1", "-1"))
        return column.labels.get(text, f"{short(text)} {unit}".strip()) if text else "not known"

    def change(self, change: Change) -> tuple[str, str, str]:
        """Name, old and new value of a changed column. One that moves a part of the way says how far."""
        old, new = self.value(change.feature, change.old), self.value(change.feature, change.new)
        if old == new:
            new = f"{100 * change.size:.0f} % of the way to another value"
        return self.name(change.feature), old, new

    def decision(self, outcome: Outcome) -> str:
        """A decision in words; of a regression the value in the label's units."""
        if self.task != "regression":
            return self.classes[str(outcome.decision)]
        low, high = self.label.low or 0.0, self.label.high or 0.0
        return f"{low + outcome.score * (high - low):.4g}"

    @property
    def score(self) -> str:
        """What a score is."""
        names = {"multiclass": "probability of the decision", "regression": "position in the label's range"}
        return names.get(self.task, f"probability of “{self.positive}”")


def short(text: str) -> str:
    """A number with as many digits as people read; other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    return text if value.is_integer() else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What records have spent of their privacy budget. noise: who adds it. parts: epsilon of each part alone."""

    epsilon_rdp: float = 0.0
    epsilon_added: float | None = None
    epsilon_dealer: float | None = None
    epsilon_batches_known: float = 0.0
    delta: float = 0.0
    cap: float = 0.0
    noise: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    releases: int = 0
    releases_in_ledger: int = 0
    raised: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Privacy(Spent):
    """What the training records have spent. epsilon_pld: by privacy loss distributions, which are tight."""

    epsilon_pld: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(Spent):
    """How figures of test records were released (exact or noisy), and what noisy ones cost."""

    kind: str
    min_group: int = 0
    controls: str = "none"
    deviation: float | None = None
    standard_errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rate:
    """A rate with its 95 % interval and the records it rests on. noise: of versions without an interval."""

    value: float
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Group:
    """Rates of a group; too_few: rates that would rest on too few records. of: empty, of earlier versions."""

    too_few: tuple[str, ...]
    rates: Mapping[str, Rate] = field(default_factory=dict)
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Checks:
    """Validity checks of a counterfactual model of the evaluation; failed: those it does not pass."""

    edit_auc: float | None = None
    edit_auc_unedited: float | None = None
    edit_auc_real: float | None = None
    edit_mmd_ratio: float | None = None
    edit_size: float | None = None
    edit_cycle_error: float | None = None
    edit_erm: float | None = None
    edit_erm_null: float | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """A method of the frontier: figures over seeds, by metric. lam None: chosen by the rule in each seed."""

    method: str
    lam: float | None = _key("lambda")
    chosen: bool = False
    figures: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Frontier:
    """Accuracy against flip rate along lambda (`evaluation.frontier`). checks: means over the seeds."""

    seeds: tuple[int, ...]
    rule: str
    points: tuple[Point, ...]
    lambdas: tuple[float | None, ...] = ()
    gain: Mapping[str, Span] = field(default_factory=dict)
    cut: Mapping[str, Span] = field(default_factory=dict)
    nulls: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checks: Mapping[str, Checks] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A public test record before and after a counterfactual, decided by the run. why: the reason to show it."""

    id: str
    groups: tuple[str, ...]
    before: Outcome
    after: Outcome
    moved: tuple[Change, ...]
    change: float
    flipped: bool
    why: str = ""


@dataclass(frozen=True)
class Examples:
    """Records drawn at random, with their scores before and after; `shown` are the extremes and the middle.

    model: the counterfactual model that changed them, which passed its checks. Older reports do not name it.
    """

    drawn: int
    flipped: int
    scores: tuple[tuple[float, ...], ...]
    shown: tuple[Example, ...]
    people: tuple[Example, ...] = ()
    model: str = "all"


@dataclass(frozen=True)
class Refresh:
    """One release of the noisy contingency tables, the roles that followed, and epsilon spent by then."""

    refresh: int
    deviation: float
    roles: Mapping[str, str]
    proposed: Mapping[str, str]
    scores: Mapping[str, float]
    p_values: Mapping[str, float]
    changes: tuple[str, ...]
    epsilon: float | None


@dataclass(frozen=True)
class Validation:
    """Released figures of the validation records for one lambda."""

    loss: float
    gap_rms: float
    spread: float
    flips: float | None = None


@dataclass(frozen=True)
class Trial:
    """One weight of the consistency loss."""

    lam: float
    validation: Validation | None
    steps: int


@dataclass(frozen=True)
class Leak:
    """Of older runs: how well a linear adversary recovers s from all encodings together."""

    balanced: float | None
    chance: float | None
    recovered: float | None
    largest: float | None
    groups: float | None = None


@dataclass(frozen=True)
class Validity:
    """What counterfactuals of one attribute do besides; `so`: why their terms were not released."""

    identity: float | None = None
    support: float | None = None
    size: float | None = None
    leak: Leak | None = None
    so: str = ""


@dataclass(frozen=True)
class Release:
    """A value that was opened or released, with its receivers and how often."""

    name: str
    receivers: tuple[int, ...]
    shape: tuple[int, ...]
    purpose: str
    event: str | None
    times: int


@dataclass(frozen=True)
class LabelsFromGradients:
    """The share of training labels that a party can read from the gradients it was sent."""

    party: int
    rate: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True)
class Cost:
    """Time and traffic of one phase, at the party whose folder was read."""

    seconds: float
    rounds: int
    bytes: int
    dealer_bytes: int


@dataclass(frozen=True)
class Report:
    """All results of a run. No path of the machine is in it.

    Absent where records may not be pooled: `judges` (counterfactual models of the evaluation), `information` and
    `frontier`. slices, slice_baselines: of earlier versions, kept as they are and not shown. host, approvals: on a
    party's own host, its rank and who approved the plan.
    """

    run: str
    engine: str
    mode: str
    parties: int
    party_names: tuple[str, ...]
    dataset: str
    data: Description
    pooled: bool
    split: str
    seed: int
    rows: Mapping[str, int]
    roles: Mapping[str, Role]
    proxies: Proxies
    proposed: Mapping[str, str]
    by_card: tuple[str, ...]
    confidence: Mapping[str, float]
    mask: str
    owners: Mapping[str, str]
    scores: Mapping[str, float]
    role_changes: tuple[str, ...]
    privacy: Privacy
    releases: tuple[Release, ...]
    models: Mapping[str, str]
    cost: Mapping[str, Cost]
    lam: float | None = _key("lambda", default=None)
    missing_depends: tuple[str, ...] = ()
    temperature: float = 1.0
    align: str = "exact"
    security: Literal["semi-honest", "active"] = "semi-honest"
    aware: Mapping[str, str] | None = None
    evaluation: Evaluation | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    slices: Any = None
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    baseline_noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    baseline_groups: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)
    judges: Mapping[str, Checks] = field(default_factory=dict)
    information: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    frontier: Frontier | None = None
    slice_baselines: Mapping[str, Any] = field(default_factory=dict)
    refreshes: tuple[Refresh, ...] = ()
    tables: Mapping[str, tuple[str, ...]] | None = None
    trials: tuple[Trial, ...] = ()
    validity: Mapping[str, Validity] = field(default_factory=dict)
    examples: Examples | None = None
    label_inference: tuple[LabelsFromGradients, ...] = ()
    crypten_operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    host: int | None = None
    approvals: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def noisy(self) -> bool:
        """Whether figures of test records carry noise."""
        return self.evaluation is not None and self.evaluation.kind == "noisy"

    @property
    def security_words(self) -> str:
        """The level of security of the run, and what it covers."""
        return f"Security: {self.security}. {COVERS[self.security]}"

    @property
    def uncharged(self) -> tuple[Release, ...]:
        """Releases without noise, which the privacy budget does not cover."""
        return tuple(release for release in self.releases if release.event is None)


def read(run: Path) -> Report:
    """The report of a run's folder; ResultsError if there is none or it was damaged."""
    path = run / REPORT
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError:
        raise ResultsError(f"{run} is not the folder of a finished run: it has no {REPORT}") from None
    except (ValueError, TypeError) as error:
        raise ResultsError(
            f"{path} cannot be read: it is torn or was changed ({error}); `audit verify` tells more"
        ) from None


def parse(text: str) -> Report:
    """The report in the text of a report.json of version 1 or 2; ValueError if it is none."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    version = data.pop("version", 1)
    if version not in (1, VERSION):
        raise ValueError(f"version {version}; this program reads 1 and {VERSION}")
    return decode(Report, data if version == VERSION else _from_version_1(data), strict=version == VERSION)


def write(run: Path, report: Report) -> Path:
    """Write report.json into a run's folder."""
    path = run / REPORT
    path.write_text(json.dumps(to_json(report), indent=1) + "\n", encoding="utf-8")
    return path


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON of the newest version."""
    return {"version": VERSION, **encode(report)}


def _from_version_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Version 1 had an empty evaluation, a part "qualitative", and figures of the frontier next to its methods."""
    changed = {**data, "evaluation": data.get("evaluation") or None, "frontier": data.get("frontier") or None}
    if data.get("qualitative"):
        changed["information"] = data["qualitative"]["information"]
    if changed["frontier"]:
        points = [
            {**point, "figures": {name: value for name, value in point.items() if isinstance(value, dict)}}
            for point in data["frontier"]["points"]
        ]
        changed["frontier"] = {**data["frontier"], "points": points}
    return changed


def encode(value: Any) -> Any:
    """A node of the tree as JSON data."""
    if is_dataclass(value):
        return {f.metadata.get("key", f.name): encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, (list, tuple)) else value


def known_fields(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of JSON data that a node of this type has a field for."""
    return {key: value[key] for key in _fields(kind) if key in value}


def decode(kind: type[Node], value: Any, *, strict: bool = False, path: str = "") -> Node:
    """JSON data as a node of this type; ValueError names the path of what does not fit.

    strict: refuse fields that the type does not have.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{path or 'the report'} is not an object")
    expected = _fields(kind)  # type: ignore[arg-type]
    if strict and (unknown := sorted(value.keys() - expected.keys())):
        raise ValueError(f"unknown field {path}{unknown[0]}")
    values = {}
    for key, (name, annotation, required) in expected.items():
        if key in value:
            values[name] = _value(annotation, value[key], strict, f"{path}{key}")
        elif required:
            raise ValueError(f"no field {path}{key}")
    return kind(**values)


@cache
def _fields(kind: type) -> dict[str, tuple[str, Any, bool]]:
    """By name in JSON: the field's own name, its type, and whether it is required."""
    hints = get_type_hints(kind)
    return {
        f.metadata.get("key", f.name): (f.name, hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
    }


_SCALARS = {str: (str,), bool: (bool,), int: (int,), float: (int, float)}


def _value(kind: Any, value: Any, strict: bool, path: str) -> Any:
    """One value of the tree."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value, strict=strict, path=f"{path}.")
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(arguments[0], item, strict, f"{path}[{n}]") for n, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {name: _value(arguments[1], item, strict, f"{path}.{name}") for name, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        kinds = [argument for argument in arguments if argument is not NoneType]
        if len(kinds) == 1:
            return _value(kinds[0], value, strict, path)
        accepted = tuple(one for argument in kinds for one in _SCALARS[argument])
    else:
        accepted = _SCALARS.get(kind, ())
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        raise ValueError(f"{path} is not of the expected type")
    return value
