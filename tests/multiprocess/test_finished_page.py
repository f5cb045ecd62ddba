"""The page of a finished run, as its readers have it, in words and in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from secure_sccvfl.accounting.charts import tidy
from secure_sccvfl.evaluation.frontier import BUDGETS
from secure_sccvfl.launch.cli import main
from secure_sccvfl.reports.collect import find_warnings
from secure_sccvfl.reports.figures import tiles
from secure_sccvfl.reports.page import render
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.results import Checks, Frontier, LabelsFromGradients, read, write
from secure_sccvfl.reports.run_log import record
from secure_sccvfl.reports.sections import attack_panels, attack_story, missed
from tests.multiprocess.audited import problems
from tests.support.browser import CHROMIUM, Browser
from tests.unit.reports.literal import frontier

SECTIONS = tuple(
    ["warnings", "metrics", "roles", "examples", "privacy", "attacks", "learned", "training", "cost", "trust"]
)


def test_leakage_goes_to_the_log_and_the_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"chance": 0.5, "control": 0.52, "gain": 0.01, "gain_low": -0.02, "gain_high": 0.04}
    rows = [
        {"attack": "aia", "view": view, "strength": s, "rate": 0.5, "low": 0.45, "high": 0.55, **base}
        for view in ("dealer", "party-1 <alone>")
        for s in (1, 2)
    ]
    (run / "security.json").write_text(json.dumps({"rows": rows}))
    assert any("security.json is in no record" in line for line in problems(run, "files"))
    record(run, "leakage", {"highest": 0.5}, [run / "security.json"])
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert (
        "Guessing the protected attribute" in page and "party-1 &lt;alone&gt;" in page and "Not run yet" not in page
    )
    assert problems(run) == []


def test_attacks_in_plain_words() -> None:
    """The outcome first, who the attacker is, what no secrecy would cost; a leak is told."""
    base = {"attack": "aia", "strength": None, "low": 0.45, "high": 0.7, "chance": 0.5, "control": 0.5, "gain": 0.0}
    ours = [
        {**base, "view": view, "rate": 0.5, "promise": "no gain", "leak": False}
        for view in ("label holder bank", "parties bank+bureau", "network")
    ]
    server = {
        **base,
        "view": "plaintext server: fused z of the paper",
        "rate": 0.66,
        "promise": "shown",
        "leak": None,
    }
    audit = {"samples": 800, "epsilon_low": 1.5, "epsilon_high": 3.0, "holds": True}
    security = {"rows": [*ours, server], "dp_audit": audit}
    first, second, third = attack_story(security)
    assert first.startswith("No leak was found: in 3 comparisons") and "rate of 66.0 %" in second
    assert "at least 1.50; 3.00 is promised as the most. That promise holds." in third
    audits = {"sketch": audit, "risk gains": {**audit, "holds": False}}
    *_, held, broken = attack_story({"rows": ours, "dp_audits": audits})
    assert "(sketch)" in held and "(risk gains)" in broken and broken.endswith("The promise is broken.")
    chart = attack_panels(security)[0]["charts"][0][2]
    assert all(f">{row['view']}</text>" in chart for row in security["rows"])
    ours[1]["leak"] = True
    assert attack_story(security)[0].startswith("Something leaked that should not have: parties bank+bureau")
    check = {"kind": "target", "value": 0.56, "limit": 0.55}
    checks = [{"check": f"aia: {view}", "holds": view == "dealer", **check} for view in ("dealer", "network")]
    (line,) = missed({"checks": checks})
    assert "aia: network: 0.560 was found, at most 0.550" in line
    assert attack_panels(None) == [] and attack_story(None) == [] and missed(None) == []


def test_warnings_in_plain_words(whole_run: Path) -> None:
    report = read(whole_run)
    seen = [LabelsFromGradients(rank, 1.0, 0.99, 1.0, 0.7) for rank in range(3)]
    report = replace(
        report,
        metrics={**report.metrics, "acc": 0.69, "positive_rate": 0.001},
        baselines={"majority": {"acc": 0.7}, "drop_m": {"acc": 0.9}},
        judges=dict.fromkeys(report.judges, Checks()),
        frontier=None,
        groups=(),
        label_inference=tuple(seen),
    )
    simple, same, *labels = find_warnings(report)
    assert simple.startswith("69.0 % correct (95 % interval 63.6 % to 74.0 %)") and "positive: 0.1 %" in same
    assert "(70.0 %, within the interval) and a model without the mediators (90.0 %)." in simple
    assert [line.split(",")[1].split()[0] for line in labels] == ["employer", "bureau"]  # bank has the labels


class Sections(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "section":
            self.ids.append(str(attributes["id"]))
        for name in ("src", "href"):
            target = attributes.get(name) or ""
            if target and not target.startswith(("#", "data:")):
                self.fetched.append(target)


def test_the_page_is_whole_and_needs_nothing_else(whole_run: Path) -> None:
    page, report = (whole_run / "report.html").read_text(), read(whole_run)
    seen = Sections()
    seen.feed(page)
    assert sorted(seen.ids) == sorted([*SECTIONS, *(["frontier"] if report.frontier else [])]) and seen.fetched == []
    assert "url(" not in page and "@import" not in page
    figures = [text for tile in tiles(report) for text in (tile.name, tile.value, *tile.below)]
    charts = ("Correct decisions", "Before and after", "Accuracy against flip rate")
    learned = ("Knew before: its 7 columns and the label. Received alone:", "contents are encrypted")
    cost = ("all processes on one machine", "from the dealer")
    for text in ("good credit", "younger than 25", "Not run yet", report.run, report.data.about, *cost):
        assert text in page
    charts_drawn = [f'aria-label="{name}"' for name in charts]
    for text in (*figures, *learned, *charts_drawn, *report.warnings):
        assert text.replace("'", "&#39;") in page.replace("\u00a0", " "), text
    for group in report.groups:
        rate = f"{100 * group.rates['positive_rate'].value:.1f} %"
        assert rate in page.replace("\u00a0", " "), "the rates are those of the report"
    assert report.examples is not None and page.count('class="point') == report.examples.drawn
    for text in (*report.models.values(), *(f"record {example.id}" for example in report.examples.shown)):
        assert text in page
    assert str(whole_run) not in page and not re.search(r"-0\.0+\b", page)


def test_every_point_of_the_frontier_has_its_figures(whole_run: Path) -> None:
    tree = read(whole_run).frontier
    assert tree is not None and tree.points
    assert all({"acc", "fr_all", "fr_kr_all"} <= point.figures.keys() for point in tree.points)
    assert {name: checks.failed for name, checks in tree.checks.items()} == dict(tree.failed)


def with_frontier(run: Path, tree: Frontier | None) -> str:
    """The page of a run whose report has this frontier, or none."""
    write(run, replace(read(run), frontier=tree))
    return render(run)


def test_the_page_lists_other_budgets_and_how_to_contest_a_decision(run: Path, whole_run: Path) -> None:
    tree, page = read(whole_run).frontier, render(run)
    assert tree is not None
    budgets = [point for point in tree.points if point.method.startswith("epsilon=")]
    assert [point.method for point in budgets] == [f"epsilon={at:g}" for at in BUDGETS]
    assert "Other total privacy budgets" in page and "To contest" not in page
    row = [tidy(100 * budgets[0].figures[name].mean, 1) for name in ("acc", "certified")]
    assert re.search(r"<td>0\.5</td>.*" + row[0] + ".*" + row[1], page.replace("\n", ""))
    card = json.loads((run / CARD).read_text())
    contest = {"contact": "appeals@bank.example", "days": 30}
    (run / CARD).write_text(json.dumps({**card, "contest": contest}))
    assert "To contest a decision: appeals@bank.example, within 30 days of it." in render(run)


def test_the_frontier_follows_the_figures_where_there_is_one(run: Path) -> None:
    plain = with_frontier(run, None)
    assert 'id="frontier"' not in plain and 'href="#frontier"' not in plain
    page = with_frontier(run, frontier())
    seen = Sections()
    seen.feed(page)
    assert seen.ids[:3] == ["warnings", "metrics", "frontier"] and seen.fetched == []
    rule = frontier().rule.removesuffix(".")
    for said in ("Means and 95 % intervals over 8 seeds", "λ 4 (this run)", rule, 'href="#frontier"', "over 8 seeds"):
        assert said in page
    assert "over 8 seeds" not in plain and "Are the counterfactual models valid on these data?" in plain


MOST_WORDS, MOST_PIXELS = 2500, 3500
"""Of the page of a run on benchmark data, all folds open; above the first of them on a desktop."""
PROBE = (
    "document.readyState=='complete'&&location.protocol=='file:'&&{theme:document.documentElement.dataset.theme,"
    "wide:document.documentElement.scrollWidth,back:getComputedStyle(document.body).backgroundColor,"
    "clipped:[...document.querySelectorAll('svg.chart text')].filter(t=>{var a=t.getBoundingClientRect(),"
    "b=t.ownerSVGElement.getBoundingClientRect();return a.width&&(a.left<b.left-1||a.right>b.right+1"
    "||a.bottom>b.bottom+1)}).map(t=>t.textContent),"
    "cut:[...document.querySelectorAll('#learned .scroll,#cost .scroll,#roles .scroll')]"
    ".filter(s=>s.scrollWidth>s.clientWidth).length,"
    "low:[...document.querySelectorAll('section')].filter(s=>s.offsetHeight<40).length}"
)
SIZE = """(() => {
  const fold = document.querySelector("details"), above = fold.getBoundingClientRect().top + scrollY;
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const broken = [], words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const node = words.currentNode;
    if (node.parentElement.closest("code, svg, script, style")) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(word[0]);
    }
  }
  return {above, broken, words: document.body.innerText.split(/\\s+/).length,
          wide: document.documentElement.scrollWidth};
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser(run: Path, tmp_path: Path) -> None:
    """No error in the console, every section laid out, nothing too wide or cut off; a broken page is noticed."""
    pages = {name: tmp_path / f"{name}.html" for name in ("whole", "frontier", "broken")}
    pages["whole"].write_text(whole := (run / "report.html").read_text())
    pages["frontier"].write_text(with_frontier(run, frontier()))
    broken = '<section id="x"></section><div style="width:900px">wide</div><script>gone()</script>'
    broken += '<svg class="chart" viewBox="0 0 99 9"><text x="80" y="8">a long label</text></svg></body>'
    pages["broken"].write_text(whole.replace("</body>", broken))
    with Browser(tmp_path) as browser:
        for width, theme, back in ((1200, "light", "246, 247, 249"), (375, "dark", "16, 21, 27")):
            for name in ("whole", "frontier"):
                browser.open(pages[name].as_uri(), width, theme)
                seen = browser.until(PROBE)
                clipped = seen.pop("clipped")
                assert seen == {"theme": theme, "wide": width, "back": f"rgb({back})", "low": 0, "cut": 0}, name
                assert browser.complaints == [] and (clipped == [] or name == "frontier")
        browser.open(pages["broken"].as_uri(), 375, "light")
        seen = browser.until(PROBE)
        assert seen["wide"] == 900 and seen["low"] == 1 and "a long label" in seen["clipped"]
        assert "gone is not defined" in str(browser.complaints)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_is_short_and_no_word_is_broken(run: Path, tmp_path: Path) -> None:
    """The limits of a page of benchmark data, with a full frontier; a page that exceeds them is noticed."""
    page = with_frontier(run, frontier())
    long = (
        f"<div style='height:{MOST_PIXELS}px'></div><p>{'word ' * MOST_WORDS}</p><h1 style='width:2em;overflow-wrap:"
    )
    pages = {"page": page, "long": page.replace("<main>", f"<main>{long}anywhere'>threshold</h1>")}
    with Browser(tmp_path) as browser:
        for name, text in pages.items():
            (tmp_path / f"{name}.html").write_text(text)
            for width, theme in ((1300, "light"), (390, "dark")):
                browser.open((tmp_path / f"{name}.html").as_uri(), width, theme)
                browser.until(PROBE)
                seen = browser.until(SIZE)
                assert seen["wide"] == width and browser.complaints == [], "also with all folds open"
                assert ("threshold" in seen["broken"]) == (name == "long") and len(seen["broken"]) <= (name == "long")
                assert (seen["words"] > MOST_WORDS) == (name == "long"), seen
                assert (seen["above"] > MOST_PIXELS) == (name == "long") or width != 1300, seen


def test_the_page_with_three_groups_and_figures_near_zero(run: Path) -> None:
    """The words fit more than two groups, no placeholder is left, and nothing is minus zero."""
    report = read(run)
    first, scores = report.data.protected[0], dict.fromkeys(list(report.scores)[:2], -1e-5)
    first = replace(first, labels=(*first.labels, "born elsewhere"), groups=(*first.groups, "third"))
    zero = {name: -1e-5 for name in report.metrics if name.startswith("net_")}
    report = replace(
        report,
        data=replace(report.data, protected=(first, *report.data.protected[1:])),
        groups=(*report.groups, report.groups[-1]),
        metrics={**report.metrics, **zero},
        scores={**report.scores, **scores},
    )
    write(run, report)
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", render(run), flags=re.DOTALL)
    assert "another group" in text and "the other group" not in text
    assert "born elsewhere" in text and not re.search(r"[>( ]-0\.0+\b(?![1-9])", text)
