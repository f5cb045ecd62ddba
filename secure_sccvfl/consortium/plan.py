"""The plan of a session: what people agree to before anything starts, from public things alone.

| section | what it holds |
|---|---|
| `session` | who takes part (place, name, address, certificate), jobs in order, every setting of the session file |
| `data` | the description: columns, label, groups, by party |
| `card` | the policy card: its version, its digest, the roles that it decides |
| `code` | the digest of the code |
| `openings` | for each job what will be opened to whom, how often, and what pays for it |
| `budget` | for each job the cap, and what each charge costs |

Every section has a digest, and the plan's digest is over these. So a change can be named by its section. The digest
is the same at every host: nothing of one party's records, ledgers or paths is in it. What is of this host alone is in
`secure_sccvfl.consortium.outlook`. Two things of a session file are left out, since they change nothing that is
agreed: `job`, if `jobs` are given, and the option `resume`, which opens and charges nothing anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accounting.accountant import epsilon_of
from accounting.calibration import noise_multiplier
from accounting.events import Event
from protocols.config import ConfigError, SessionConfig, code_digest, node_folder
from protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.data.files import read_description
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.modes import gradient_mode
from secure_sccvfl.modes.base import noise_multiplier_of
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.privacy.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.privacy.noise import COARSER
from secure_sccvfl.privacy.releases import NOISY_GRADIENT, kind_of
from secure_sccvfl.run.jobs import WITHOUT_DATA, job_config, public_plan

DIGITS = 4
"""Of an epsilon, rounded up: hosts that differ in the last bits of a float agree."""


@dataclass(frozen=True)
class Spending:
    """What a job charges to one ledger. charges: name, number of releases, chance of a record to be in each."""

    ledger: str
    cap: float
    delta: float
    multiplier: float
    charges: tuple[tuple[str, int, float], ...]

    def events(self) -> list[Event]:
        """The charges as events, for accountants; what a record moves is taken as 1."""
        made = []
        for name, count, sampling in self.charges:
            added = 1.0 if sampling == 1 else 0.5  # as `Sensitivity.of_any` prices a sampled step
            sigma = self.multiplier * COARSER.get(name, 1.0)
            made.append(Event(name, 1.0, sigma, "planned", count=count, sampling=sampling, added=added))
        return made

    def as_record(self) -> dict[str, Any]:
        events, told = self.events(), []
        for number, event in enumerate(events):
            alone, after = (epsilon_of(part, self.delta) for part in ([event], events[: number + 1]))
            told.append({"charge": event.name, "times": event.count, "alone": _up(alone), "after": _up(after)})
        terms = {name: getattr(self, name) for name in ("ledger", "cap", "delta", "multiplier")}
        return {**terms, "charges": told, "epsilon": told[-1]["after"]}


@dataclass(frozen=True)
class Plan:
    """The agreed sections. `options` and `schema` are None if no job is about records."""

    sections: Mapping[str, Any]
    spending: Mapping[str, Spending]
    options: RunOptions | None
    schema: Schema | None

    @property
    def digests(self) -> dict[str, str]:
        return {name: digest_of(section) for name, section in self.sections.items()}

    @property
    def digest(self) -> str:
        """What every party signs."""
        return digest_of(self.digests)

    def as_record(self) -> dict[str, Any]:
        return {"digest": self.digest, "digests": self.digests, **self.sections}


def canonical(value: Any) -> bytes:
    """The one spelling of a value as JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str).encode()


def digest_of(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def jobs_of(config: SessionConfig) -> tuple[str, ...]:
    """The jobs of a session, in order."""
    return config.jobs or (config.job,)


def make_plan(config: SessionConfig) -> Plan:
    """The plan of a session file. The description and the card that it names are read, and no record."""
    jobs, options, schema, card = jobs_of(config), None, None, None
    if len(set(jobs)) < len(jobs):
        raise ConfigError(f"a job is named twice, and a plan tells each once: {', '.join(jobs)}")
    if any(job != WITHOUT_DATA for job in jobs):
        options = RunOptions.of(config.options)
        options.check(len(config.parties))
        schema = options.schema(len(config.parties))
        card = options.policy(schema)
    plans = {job: public_plan(job_config(config, job)) for job in jobs}
    spending = {job: found for job, plan in plans.items() if (found := _spending(job, plan, options)) is not None}
    sections = {
        "session": _session(config),
        "data": _data(options, schema),
        "card": _card(card),
        "code": {"digest": code_digest().hex()},
        "openings": {job: [_opening(r, config) for r in plan.releases.values()] for job, plan in plans.items()},
        "budget": {job: found.as_record() for job, found in spending.items()},
    }
    return Plan(sections, spending, options, schema)


def _session(config: SessionConfig) -> dict[str, Any]:
    settings = asdict(config)
    for shown_apart in ("parties", "names", "certificates", "job", "jobs"):
        del settings[shown_apart]
    settings["options"] = {k: v for k, v in config.options.items() if k != "resume"}
    places = [node_folder(node, config.dealer) for node in range(config.dealer + 1)]
    people = [
        {
            "place": place,
            "name": config.names[node] if config.names and node < config.dealer else "",
            "address": config.parties[node] if node < config.dealer else "",
            "certificate": config.certificates.get(place, ""),
        }
        for node, place in enumerate(places)
    ]
    return {"people": people, "jobs": list(jobs_of(config)), **settings}


def _data(options: RunOptions | None, schema: Schema | None) -> dict[str, Any] | None:
    if options is None or schema is None:
        return None
    told = {
        "name": schema.name,
        "task": schema.task,
        "classes": list(schema.classes),
        "id": schema.id_rule.name,
        "label": schema.parties[schema.label_holder],
        "protected": [[a.name, list(a.groups), schema.parties[a.holder]] for a in schema.protected],
        "columns": {party: [f.name for f in own] for party, own in zip(schema.parties, schema.features, strict=True)},
        "pooled": options.pooled,
        "align": options.align,
        "schema": schema.digest(),
    }
    if not options.pooled:
        told["description"] = digest_of(_without_files(read_description(Path(options.dataset))))
    return told


def _without_files(value: Any) -> Any:
    """A description without the names of files: each party calls its own as it likes."""
    if isinstance(value, dict):
        return {k: _without_files(v) for k, v in value.items() if k != "file"}
    return [_without_files(v) for v in value] if isinstance(value, list) else value


def _card(card: PolicyCard | None) -> dict[str, Any] | None:
    if card is None:
        return None
    told = {"version": card.version, "digest": card.digest(), "approved": card.approved_on}
    return {**told, "roles": dict(card.roles.of), "rules": digest_of(card.rules())}


def _opening(release: Release, config: SessionConfig) -> dict[str, Any]:
    kind = kind_of(release.name, charged=release.event is not None)
    return {
        "name": release.name,
        "to": [node_folder(rank, config.dealer) for rank in release.receivers],
        "shape": ["any" if length == ANY else length for length in release.shape],
        "times": release.times,
        "what": release.purpose if kind is None else kind.words,
        "why": "uncharged" if kind is None else kind.basis,
        "charge": release.event or "",
    }


def _spending(job: str, plan: ReleasePlan, options: RunOptions | None) -> Spending | None:
    """What a job charges, by the same calibration as the job itself."""
    events = list(dict.fromkeys(r.event for r in plan.releases.values() if r.event is not None))
    if options is None or not events:
        return None
    if job == "evaluate":
        cap, delta = options.evaluation_epsilon, options.evaluation_delta
        multiplier = noise_multiplier(cap, delta, options.evaluations)
        return Spending(EVALUATIONS, cap, delta, multiplier, tuple((event, 1, 1.0) for event in events))
    if job == "discovery":
        charges = [(event, 1, 1.0) for event in events]
        return Spending(LEDGER, options.epsilon, options.delta, noise_multiplier_of(options), tuple(charges))
    if job != "train":
        raise ConfigError(f"the job {job!r} charges, and no plan says how much")
    steps = gradient_mode(options.mode).charged_steps(options)
    of_steps = NOISY_GRADIENT.pays
    charges = [(event, 1, 1.0) for event in events if event != of_steps]
    charges += [(event, count, sampling) for event in events if event == of_steps for sampling, count in steps]
    return Spending(LEDGER, options.epsilon, options.delta, noise_multiplier_of(options), tuple(charges))


def _up(epsilon: float) -> float:
    return math.ceil(epsilon * 10**DIGITS) / 10**DIGITS
