"""`report.html`: one page that explains a run to somebody who was not there.

It says what was trained, how good and fair it is, what it cost and who learned what. The page is one file: styles,
script and charts are inside, and nothing is fetched. It is made from files of the run's folder: report.json,
privacy_budget.json, policy_card.json, a party's audit log and, after a security evaluation, security.json. It shows
single records only where they are public.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from secure_sccvfl.accounting.budget import GRAM, HEAD, part_of
from secure_sccvfl.accounting.charts import STYLE, percent, tidy
from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.reports import figures, sections
from secure_sccvfl.reports.figures import frontier, listed
from secure_sccvfl.reports.folders import RunFolder, in_order, read_json
from secure_sccvfl.reports.policy_card import CARD, governance
from secure_sccvfl.reports.results import REPORT, read
from secure_sccvfl.reports.sections import attack_panels, attack_story, missed
from secure_sccvfl.runs.files import read_audit
from secure_sccvfl.training.modes import MODES

PAGE = "report.html"


def write_page(run: Path, today: datetime.date | None = None) -> Path:
    """Write the page of a run."""
    path = run / PAGE
    path.write_text(render(run, today), encoding="utf-8")
    return path


def made_on(page: str) -> datetime.date:
    """The day on which a page says that it was made."""
    match = re.search(r'<meta name="made" content="([0-9-]+)">', page)
    if match is None:
        raise ConfigError(f"{PAGE} does not say when it was made; make it again")
    return datetime.date.fromisoformat(match[1])


def render(run: Path, today: datetime.date | None = None) -> str:
    """The page as text."""
    folder, today = RunFolder.of(run), today or datetime.date.today()
    report, budget = read(run), read_json(run / "privacy_budget.json")
    card, security = (read_json(path) if path.exists() else None for path in (run / CARD, run / "security.json"))
    policy = None if card is None else governance(PolicyCard.of(card), today)
    audit = [entry for log in in_order(folder.part(), "audit") for entry in read_audit(log)]
    return template("report.html").render(
        r=report,
        b=budget,
        tables=[release for release in budget["releases"] if part_of(release["name"]) not in (GRAM, HEAD)],
        card=policy,
        css=Markup(template("report.css").render() + STYLE),
        script=Markup(template("report.js").render()),
        made=today.isoformat(),
        seen_from=report.party_names[folder.first],
        digest=hashlib.sha256((run / REPORT).read_bytes()).hexdigest(),
        head=sections.headline(report),
        other=sections.other_group(report),
        frontier=frontier(report),
        tiles=figures.tiles(report),
        panels=figures.metric_panels(report),
        cf_models=figures.cf_models(report),
        checks=figures.check_table(report),
        groups=figures.group_table(report),
        noise_words=figures.noise_words(report),
        gaps=figures.gap_words(report),
        roles=sections.role_chart(report, audit, card),
        role_words=sections.role_words(report.proxies),
        examples=sections.examples(report),
        refused=[entry for entry in audit if entry["event"] == "refresh refused"],
        releases=sections.release_table(report),
        trials=sections.training_panels(report),
        costs=sections.cost_rows(report),
        totals=[(word, show(getattr(report.cost["total"], key))) for key, (word, show) in sections.COSTS.items()],
        learned_by=sections.learned_by(report),
        mode=MODES.get(report.mode),
        attacks=attack_panels(security),
        attack_story=attack_story(security),
        attack_checks=(security or {}).get("checks", []),
        missed=[*missed(security), *(policy["urgent"] if policy is not None else [])],
        one_machine=_one_machine(run / "session.toml"),
    )


def _one_machine(session: Path) -> bool:
    """Whether all parties ran on one host, according to the run's own settings."""
    return session.exists() and all(a.startswith("127.0.0.1:") for a in load_session(session).parties)


def template(name: str) -> Template:
    """A template of this package; values in pages are escaped."""
    environment = Environment(
        loader=PackageLoader("secure_sccvfl.reports"),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"svg": Markup, "tidy": tidy, "percent": percent, "listed": listed}
    return environment.get_template(name)
