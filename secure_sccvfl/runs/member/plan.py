"""The plan of a session: what people agree to before anything starts, from public things alone.

| section | what it holds |
|---|---|
| `session` | who takes part (place, name, address, certificate), jobs in order, every setting of the session file |
| `data` | the description: columns, label, groups, by party |
| `card` | the policy card: its version, its digest, the roles that it decides |
| `code` | the digest of the code |
| `openings` | for each job what will be opened to whom, how often, and what pays for it |
| `budget` | for each job the cap, and what each charge costs |
| `predictions` | for how many people the model may answer, what is opened to whom, what a second question gets |

Every section has a digest, and the plan's digest is over these. So a change can be named by its section. The digest
is the same at every host: nothing of one party's records, ledgers or paths is in it. What is of this host alone is in
`secure_sccvfl.runs.member.outlook`. Two things of a session file are left out, since they change nothing that is
agreed: `job`, if `jobs` are given, and the option `resume`, which opens and charges nothing again.

Each party signs the digest; a party starts only if all have signed the plan as it is now. A party's key is on its own
host. An approval (place, digest, certificate, time, signature) is public and lies in `approvals/` next to the session
file. It shows that the holder of the pinned certificate agreed to this very plan at this time. It takes no rounds.

Why it holds: a signature covers place, digest, fingerprint and time, for the purpose "plan" alone. Its certificate
must be the one that the plan pins, so neither another member nor the authority can sign for a party. Each party makes
the plan again from its own copies of session file, description, card and code. So a change of any of them after
approval, at any host, stops that host before it connects. The dealer does not approve: it sees no data and learns
nothing of what is opened; the parties approve its certificate. An approval holds for its plan however often all
parties start it: the ledgers bound the cost of repeated runs. Another `name` needs new approvals.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.accountant import epsilon_of, finite
from secure_sccvfl.accounting.budget import HEAD as HEAD_PART
from secure_sccvfl.accounting.budget import by_part, part_of
from secure_sccvfl.accounting.calibration import HeadBudget, noise_multiplier
from secure_sccvfl.accounting.events import Event, Mechanism
from secure_sccvfl.data.files import read_description
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.protocols.config import ConfigError, SessionConfig, code_digest, node_folder
from secure_sccvfl.protocols.net.certificates import SHOWN, Credentials, fingerprint, is_signed, sign
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.releases.catalogue import (
    BASELINE_HEADS,
    BASELINE_OUTPUT,
    HEAD,
    HEAD_OUTPUT,
    NOISY_GRADIENT,
    PREDICTIONS,
    kind_of,
)
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER, check_signatures, read_decision
from secure_sccvfl.releases.mechanisms import COARSER
from secure_sccvfl.runs.jobs import WITHOUT_DATA, job_config, public_plan
from secure_sccvfl.runs.scoring import prediction_plan
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.base import spread_of
from secure_sccvfl.training.modes.options import RunOptions

HEADS = (HEAD.charged_as(), HEAD_OUTPUT.charged_as())
BASELINE_CHARGES = (BASELINE_HEADS.charged_as(), BASELINE_OUTPUT.charged_as())
DIGITS = 4
"""Of an epsilon, rounded up: hosts that differ in the last bits of a float agree."""


@dataclass(frozen=True)
class Spending:
    """What a job charges to one ledger. charges: name, number of releases, chance of a record to be in each.

    head: noise and curvature of private heads, for charges whose name starts with "head". Those with "output" in it
    pay for the noise that is added to a trained head. mechanism: of the heads. baselines: the same of baseline heads.
    """

    ledger: str
    cap: float
    delta: float
    multiplier: float
    charges: tuple[tuple[str, int, float], ...]
    head: HeadBudget | None = None
    mechanism: Mechanism = "objective"
    baselines: HeadBudget | None = None

    def events(self) -> list[Event]:
        """The charges as events, for accountants; what a record moves is taken as 1."""
        events = []
        for name, count, sampling in self.charges:
            if part_of(name) == HEAD_PART:
                events.append(self._of_head(name, count))
                continue
            added = 1.0 if sampling == 1 else 0.5  # as `Sensitivity.of_any` prices a sampled step
            sigma = self.multiplier * COARSER.get(name, 1.0)
            events.append(Event(name, 1.0, sigma, "planned", count=count, sampling=sampling, added=added))
        return events

    def _of_head(self, name: str, count: int) -> Event:
        head = self.baselines if name in BASELINE_CHARGES else self.head
        if head is None:
            raise ConfigError(f"{name}: a plan with a private head must say how much noise it has")
        if "output" in name:
            return Event(name, 1.0, head.output_multiplier, "planned", count=count)
        return Event(
            name,
            1.0,
            head.head_multiplier,
            "planned",
            count=count,
            mechanism=self.mechanism,
            curvature=head.curvature,
        )

    def as_record(self) -> dict[str, Any]:
        events, charges = self.events(), []
        for number, event in enumerate(events):
            alone, after = (epsilon_of(part, self.delta) for part in ([event], events[: number + 1]))
            charges.append({"charge": event.name, "times": event.count, "alone": _up(alone), "after": _up(after)})
        terms = {name: getattr(self, name) for name in ("ledger", "cap", "delta", "multiplier")}
        parts = [
            {
                "part": part,
                "times": sum(e.count for e in part_events),
                "alone": _up(epsilon_of(part_events, self.delta)),
            }
            for part, part_events in by_part(events, held_out=self.ledger == EVALUATIONS).items()
        ]
        head = {}
        if self.head is not None:  # a multiplier is infinite where a release is not made
            head = {"head": {"mechanism": self.mechanism, **{k: finite(v) for k, v in asdict(self.head).items()}}}
        if self.baselines is not None:
            head["baselines"] = {k: finite(v) for k, v in asdict(self.baselines).items()}
        return {**terms, **head, "charges": charges, "parts": parts, "epsilon": charges[-1]["after"]}


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
        if options.privacy.cap_decision:
            check_signatures(
                read_decision(Path(options.privacy.cap_decision)), len(config.parties), config.certificates
            )
    plans = {job: public_plan(job_config(config, job)) for job in jobs}
    spending = {
        job: spent for job, plan in plans.items() if (spent := _spending(job, plan, options, schema)) is not None
    }
    sections = {
        "session": _session(config),
        "data": _data(options, schema),
        "card": _card(card),
        "code": {"digest": code_digest().hex()},
        "openings": {job: [_opening(r, config) for r in plan.releases.values()] for job, plan in plans.items()},
        "budget": {job: spent.as_record() for job, spent in spending.items()},
        "predictions": _predictions(config, options, schema) if "train" in jobs or "predict" in jobs else None,
    }
    return Plan(sections, spending, options, schema)


def _session(config: SessionConfig) -> dict[str, Any]:
    settings = asdict(config)
    for shown_apart in ("parties", "names", "certificates", "job", "jobs"):
        del settings[shown_apart]
    settings["options"] = {k: v for k, v in config.options.items() if k != "resume"}
    folders = [node_folder(node, config.dealer) for node in range(config.dealer + 1)]
    people = [
        {
            "place": folder,
            "name": config.names[node] if config.names and node < config.dealer else "",
            "address": config.parties[node] if node < config.dealer else "",
            "certificate": config.certificates.get(folder, ""),
        }
        for node, folder in enumerate(folders)
    ]
    return {"people": people, "jobs": list(jobs_of(config)), **settings}


def _data(options: RunOptions | None, schema: Schema | None) -> dict[str, Any] | None:
    if options is None or schema is None:
        return None
    section = {
        "name": schema.name,
        "task": schema.task,
        "classes": list(schema.classes),
        "id": schema.id_rule.words,
        "label": schema.parties[schema.label_holder],
        "protected": [[a.name, list(a.groups), a.holder] for a in schema.protected],
        "columns": {
            party: [f.name for f in features] for party, features in zip(schema.parties, schema.features, strict=True)
        },
        "pooled": options.data.pooled,
        "align": options.data.align,
        "tables": list(options.tabled(schema)) or "all columns",
        "schema": schema.digest(),
    }
    if not options.data.pooled:
        section["description"] = digest_of(_without_files(read_description(Path(options.data.dataset))))
    return section


def _without_files(value: Any) -> Any:
    """A description without the names of files: each party calls its own as it likes."""
    if isinstance(value, dict):
        return {k: _without_files(v) for k, v in value.items() if k != "file"}
    return [_without_files(v) for v in value] if isinstance(value, list) else value


def _card(card: PolicyCard | None) -> dict[str, Any] | None:
    if card is None:
        return None
    section = {"version": card.version, "digest": card.digest(), "approved": card.approved_on}
    return {**section, "roles": dict(card.roles.of), "rules": digest_of(card.rules())}


def _opening(release: Release, config: SessionConfig) -> dict[str, Any]:
    kind = kind_of(release.name, charged=release.event is not None)
    return {
        "name": release.name,
        "to": [node_folder(rank, config.dealer) for rank in release.receivers],
        "shape": ["any" if length == ANY else length for length in release.shape],
        "times": release.times,
        "what": release.purpose if kind is None else kind.what,
        "why": "uncharged" if kind is None else kind.basis,
        "charge": release.event or "",
    }


def _predictions(config: SessionConfig, options: RunOptions | None, schema: Schema | None) -> dict[str, Any] | None:
    """What the model of a session may tell of new people."""
    if options is None or schema is None:
        return None
    opened, asked = prediction_plan(options, schema).releases, options.session
    (receiver,) = opened[PREDICTIONS.name].receivers
    scores = asked.scores or schema.task == "regression"
    parts = {"scores": scores, "decisions": not scores, "certificates": asked.certificate}
    parts |= {"decisions in other groups": asked.what_if, "names of columns as reasons": asked.reasons}
    return {
        "people": options.privacy.predictions or "no limit",
        "to": node_folder(receiver, config.dealer),
        "what": " and ".join(part for part, given in parts.items() if given),
        "again": "the answer on record; refused if a party's columns differ",
        "openings": [_opening(release, config) for release in opened.values()],
    }


def _spending(job: str, plan: ReleasePlan, options: RunOptions | None, schema: Schema | None) -> Spending | None:
    """What a job charges, by the same calibration as the job itself."""
    events = list(dict.fromkeys(r.event for r in plan.releases.values() if r.event is not None))
    if options is None or schema is None or not events:
        return None
    if job == "evaluate":
        cap, delta = options.evaluation.epsilon, options.evaluation.delta
        multiplier = noise_multiplier(cap, delta, options.evaluation.planned)
        return Spending(EVALUATIONS, cap, delta, multiplier, tuple((event, 1, 1.0) for event in events))
    spread = spread_of(options, schema)
    if job == "discovery":
        charges = [(event, 1, 1.0) for event in events]
        return Spending(LEDGER, options.privacy.epsilon, options.privacy.delta, spread.multiplier, tuple(charges))
    if job != "train":
        raise ConfigError(f"the job {job!r} charges, and no plan says how much")
    steps = gradient_mode(options.training.mode).charged_steps(options)
    of_steps = NOISY_GRADIENT.pays
    charges = [(event, 1, 1.0) for event in events if event not in (of_steps, *HEADS, *BASELINE_CHARGES)]
    charges += [(event, count, sampling) for event in events if event == of_steps for sampling, count in steps]
    terms = (LEDGER, options.privacy.epsilon, options.privacy.delta, spread.multiplier)
    if spread.heads is None:
        return Spending(*terms, tuple(charges))
    heads, budget = spread.heads
    charges += [(event, heads.heads, 1.0) for event in events if event in HEADS]
    charges += [(event, heads.baselines, 1.0) for event in events if event in BASELINE_CHARGES]
    baselines = heads.of_baselines(budget) if heads.baselines else None
    return Spending(*terms, tuple(charges), budget, heads.mechanism, baselines)


def _up(epsilon: float) -> float:
    return math.ceil(epsilon * 10**DIGITS) / 10**DIGITS


APPROVALS = "approvals"
"""The folder of approvals, next to session.toml; of another session file it has the file's name too."""
PURPOSE = "plan"
SIGNED = ("place", "digest", "fingerprint", "time")
FIELDS = (*SIGNED, "name", "digests", "certificate", "signature")
WORDS = {
    "session": "the session file",
    "data": "the data description",
    "card": "the policy card",
    "code": "the code",
    "openings": "what is opened",
    "budget": "the prices",
    "predictions": "the predictions that are allowed",
}


class ApprovalError(ConfigError):
    """The plan is not approved by all parties as it is now."""

    kind = "the plan is not approved by all parties as it is"


def approvals_folder(session: Path) -> Path:
    """The folder of the approvals of a session file; each session file has its own."""
    name = APPROVALS if session.stem == "session" else f"{APPROVALS}-{session.stem}"
    return session.resolve().parent / name


def approve(config: SessionConfig, plan: Plan, credentials: Credentials, rank: int, folder: Path) -> Path:
    """Sign the plan with this party's key; returns the file for the others."""
    check_own(config, credentials, rank)
    node, certificate = node_folder(rank, config.dealer), credentials.certificate.read_bytes()
    approval: dict[str, Any] = {
        "place": node,
        "digest": plan.digest,
        "fingerprint": fingerprint(certificate),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "name": config.names[rank] if config.names else "",
        "digests": plan.digests,
        "certificate": certificate.decode(),
    }
    approval["signature"] = sign(credentials, PURPOSE, _covered(approval))
    folder.mkdir(exist_ok=True)
    path = folder / f"{node}.json"
    path.write_text(json.dumps(approval, indent=1) + "\n", encoding="utf-8")
    return path


def check_rank(config: SessionConfig, rank: int) -> None:
    """Raise unless a party of the session has this rank."""
    if not 0 <= rank < config.dealer:
        names = ", ".join(config.node_name(party) for party in range(config.dealer))
        raise ConfigError(f"rank must be from 0 to {config.dealer - 1}, not {rank}: the session has {names}")


def check_own(config: SessionConfig, credentials: Credentials, rank: int) -> None:
    """Raise unless this is a party, and the session file pins its certificate."""
    check_rank(config, rank)
    if not config.certificates:
        raise ConfigError("the session file pins no certificates: nobody could tell who approved (`certs pin`)")
    presented = fingerprint(credentials.certificate.read_bytes())
    pin = config.certificates[node_folder(rank, config.dealer)]
    if presented != pin:
        raise ConfigError(
            f"{credentials.certificate} is {presented[:SHOWN]}, but the session file pins {pin[:SHOWN]}"
        )


def check_approvals(config: SessionConfig, folder: Path, required: bool = False) -> list[dict[str, Any]]:
    """The approvals of all parties, for a report; ApprovalError says in one line what is wrong.

    Without pinned certificates, or with `approval = "none"`, none are needed and the list is empty. required: this
    host asks for them whatever the session file says.
    """
    if not config.needs_approval:
        if required:
            says = "pins no certificates" if not config.certificates else 'says approval = "none"'
            raise ApprovalError(f"this host requires an approved plan, and the session file {says}: do not start it")
        return []
    plan = make_plan(config)
    verdicts = [approval_problem(config, plan, folder, rank) for rank in range(config.dealer)]
    wrong: dict[str, list[str]] = {}
    for rank, (problem, _) in enumerate(verdicts):
        if problem:
            wrong.setdefault(problem, []).append(config.node_name(rank))
    if wrong:
        raise ApprovalError("; ".join(f"{', '.join(who)}: {problem}" for problem, who in wrong.items()))
    return [approval for _, approval in verdicts]


def approval_problem(config: SessionConfig, plan: Plan, folder: Path, rank: int) -> tuple[str, dict[str, Any]]:
    """What is wrong with a party's approval of this plan (empty if nothing), and the approval."""
    node = node_folder(rank, config.dealer)
    path = folder / f"{node}.json"
    if not path.exists():
        return f"no approval of the plan is in {folder.name}/", {}
    approval = _read(path)
    if approval is None:
        return "what is there is no approval, or was damaged", {}
    shown, pin = fingerprint(approval["certificate"].encode()), config.certificates[node]
    if approval["place"] != node or approval["fingerprint"] != shown:
        return "what is there is the approval of somebody else", {}
    if shown != pin:
        return f"approved with certificate {shown[:SHOWN]}, but the session file pins {pin[:SHOWN]}", {}
    if not is_signed(approval["certificate"].encode(), PURPOSE, _covered(approval), approval["signature"]):
        return "the signature does not fit: it is forged, or the approval was changed", {}
    if approval["digest"] == plan.digest:  # of what is not signed the plan has the truth
        return "", {**approval, "name": config.names[rank] if config.names else "", "digests": plan.digests}
    if digest_of(approval["digests"]) != approval["digest"]:
        return "approved another plan, and what differs cannot be told", {}
    return f"the plan changed since the approval: {_changed(plan, approval['digests'])}", {}


def _read(path: Path) -> dict[str, Any] | None:
    """The fields of an approval, of the right kinds; None if they are not there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: content[name] for name in FIELDS}
        fingerprint(fields["certificate"].encode())
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None
    texts = all(isinstance(fields[name], str) for name in FIELDS if name != "digests")
    return fields if texts and isinstance(fields["digests"], dict) else None


def _changed(plan: Plan, approved: dict[str, str]) -> str:
    """The sections that differ; openings and prices follow from the others, so they are named only if alone."""
    now = plan.digests
    differing = [words for name, words in WORDS.items() if now.get(name) != approved.get(name)]
    causes = [words for words in differing if words not in (WORDS["openings"], WORDS["budget"])]
    return " and ".join(causes or differing)


def _covered(approval: dict[str, Any]) -> bytes:
    return canonical({name: approval[name] for name in SIGNED})
