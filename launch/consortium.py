"""What the parties of a consortium agree on before a session: its plan, their approvals, and a raised cap."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from secure_sccvfl.launch.arguments import answer, argument, program
from secure_sccvfl.protocols.config import ConfigError, node_folder
from secure_sccvfl.runs.console import CHECK_FAILED, OK, STOPPED, say

SESSION = argument("session", type=Path, help="the session file")


@program(
    "plan",
    SESSION,
    argument("--certs", type=Path, help="this host's folder of certificates: is its own one pinned?"),
    argument("--rank", type=int, help="this party's rank: adds its records and ledgers"),
    argument("--rows", type=int, help="estimate costs for this many records"),
    argument("--round-trip", type=float, default=0.0, metavar="MS", help="between hosts (default 0)"),
    argument("--out", type=Path, help="write the plan here as JSON"),
)
def plan(options: argparse.Namespace) -> int:
    """Show the plan of a session before anything starts: who takes part, what is opened to whom, and its price.

        sccvfl plan session.toml
        sccvfl plan session.toml --certs certs --rank 0             with this party's records, ledgers, certificate
        sccvfl plan session.toml --rows 20000 --round-trip 20       costs for so many records and 20 ms between hosts
        sccvfl plan session.toml --json --out plan.json

    It reads public things: the session file, the description and the card that it names, the code. With
    --rank also this party's own file and ledgers, which change nothing that is agreed. All parties find
    the same digest; compare its five groups by voice. --out has all of it; `sccvfl approve` signs it.
    """
    from secure_sccvfl.config.session_file import load_session, moved_options
    from secure_sccvfl.protocols.net.certificates import Credentials
    from secure_sccvfl.runs.member.outlook import outlook, plan_lines
    from secure_sccvfl.runs.member.plan import approval_problem, approvals_folder, check_own, check_rank, make_plan

    config = load_session(options.session)
    if options.rank is not None:
        check_rank(config, options.rank)
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows must be at least 1, not {options.rows}")
    if options.certs is not None and options.rank is not None:
        check_own(config, Credentials.of(options.certs, node_folder(options.rank, config.dealer)), options.rank)
    agreed = make_plan(config)
    here = outlook(config, agreed, options.rank, options.rows, options.round_trip / 1000)
    record = {**agreed.as_record(), "here": here}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    approvals = []
    if config.needs_approval:
        for rank in range(config.dealer):
            problem, approval = approval_problem(config, agreed, approvals_folder(options.session), rank)
            approvals.append(f"{config.node_name(rank)}: {problem or 'approved at ' + approval['time']}")
    notice = moved_options(options.session)
    return answer(options, record, *plan_lines(agreed, here), *([notice] if notice else []), *approvals)


@program(
    "kit",
    SESSION,
    argument("--authority", type=Path, default=Path("authority"), help="the authority's folder (default authority)"),
    argument("--member", help="party-0, party-1, ... or dealer (default: a kit for each)"),
    argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the kits are written (default here)"),
)
def kit(options: argparse.Namespace) -> int:
    """Make a start-up kit for each member: one archive with its public files and its commands.

        sccvfl kit session.toml                       writes kit-party-0.zip, ..., kit-dealer.zip
        sccvfl kit session.toml --member party-0 --out kits

    Run it where the authority's folder is, after `sccvfl certs pin`. A kit has the session file, the data
    description, the policy card and the cap decision if the session names them, ca.pem, the member's signed
    certificate, and commands.txt: every command of this member in order, with the digest of the plan. It
    holds no private key and no table. The member unpacks it next to its table and its certs (`unzip`, or
    `python -m zipfile -e kit-party-0.zip .`), and follows commands.txt.
    """
    from secure_sccvfl.config.session_file import load_session
    from secure_sccvfl.runs.member.kit import kit_of, write_kit

    config = load_session(options.session)
    nodes = {node_folder(node, config.dealer): node for node in range(config.dealer + 1)}
    if options.member not in (None, *nodes):
        raise ConfigError(f"no member {options.member!r}; available: {', '.join(nodes)}")
    wanted = list(nodes) if options.member is None else [options.member]
    kits = {
        options.out / f"kit-{m}.zip": kit_of(config, options.session, nodes[m], options.authority) for m in wanted
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for path, files in kits.items():
        write_kit(path, files)
    record = {str(path): sorted(files) for path, files in kits.items()}
    return answer(options, record, *(f"wrote {path}: {', '.join(files)}" for path, files in kits.items()))


@program(
    "preflight",
    SESSION,
    argument("--certs", type=Path, required=True, help="this host's folder of certificates"),
    argument("--rank", type=int, help="this party's rank in the session file, from 0"),
    argument("--dealer", action="store_true", help="this host is the dealer's"),
    argument("--wait", type=float, default=60.0, metavar="SECONDS", help="for the other members (default 60)"),
    argument("--listen", metavar="HOST:PORT", help="listen here instead of the address in the session file"),
)
def preflight(options: argparse.Namespace) -> int:
    """Meet all members once before a session: routes, certificates, clocks, versions, files and the plan.

        sccvfl preflight session.toml --certs certs --rank 0        at the first party, and so at each
        sccvfl preflight session.toml --certs certs --dealer        at the dealer

    All members run it within a minute. Every connection that the session will make is made, by the member
    that will dial it, and carries bytes both ways. One line for each peer: round trip, how far its clock is
    ahead, and whether its versions, session file and plan are equal to ours. The plan covers the description
    and the policy card; the dealer has none of these. It reads no table, opens no ledger, charges nothing and
    writes no file. Exit code 1 if a peer was not met, a clock is off by more than a minute, or something
    differs; the last line says what.
    """
    from secure_sccvfl.config.session_file import load_session
    from secure_sccvfl.protocols.net.certificates import Credentials
    from secure_sccvfl.protocols.net.preflight import Met, Preflight
    from secure_sccvfl.protocols.net.rendezvous import listen
    from secure_sccvfl.runs.member.preflight import facts_of, verdict

    config = load_session(options.session)
    if (options.rank is None) != options.dealer:
        raise ConfigError("name this host: --rank N at a party, --dealer at the dealer")
    if options.wait <= 0:
        raise ConfigError(f"--wait must be above 0 seconds, not {options.wait:g}")
    node = config.dealer if options.dealer else options.rank
    if not options.dealer:
        from secure_sccvfl.runs.member.plan import check_rank

        check_rank(config, node)
    credentials = Credentials.of(options.certs, node_folder(node, config.dealer))
    facts = facts_of(config, node)
    listener = None if options.listen is None else listen(options.listen)
    meeting = Preflight(replace(config, connect=options.wait), node, credentials, listener, facts)
    met: list[tuple[Met, list[str]]] = []
    for peer in meeting.meet():
        line, problems = verdict(peer, facts)
        met.append((peer, problems))
        if not options.json:
            say(line)
    reasons = [f"{peer.name}: {problem}" for peer, problems in met for problem in problems]
    if options.json:
        print(json.dumps([{**asdict(peer), "facts": None, "problems": problems} for peer, problems in met]))
    elif not reasons:
        say(f"preflight: met {len(met)} peers, and nothing differs")
    for reason in reasons:
        say(f"preflight: {reason}", error=True)
    return STOPPED if reasons else OK


@program(
    "approve",
    SESSION,
    argument("--certs", type=Path, required=True, help="this host's folder of certificates"),
    argument("--rank", type=int, required=True, help="this party's rank in the session file, from 0"),
    argument("--yes", action="store_true", help="approve without a question"),
)
def approve(options: argparse.Namespace) -> int:
    """Approve the plan of a session: this party signs its digest with the key of its certificate.

        sccvfl approve session.toml --certs certs --rank 0
        sccvfl approve session.toml --certs certs --rank 0 --yes     without a question

    It shows the plan, asks, and writes approvals/party-0.json next to session.toml (next to another session
    file, such as second.toml: approvals-second/party-0.json). Hand that file to the other parties; it is
    public. `sccvfl party` starts only if all parties approved the plan as it is.
    """
    from secure_sccvfl.config.session_file import load_session
    from secure_sccvfl.protocols.net.certificates import Credentials
    from secure_sccvfl.runs.member.outlook import outlook, plan_lines
    from secure_sccvfl.runs.member.plan import approvals_folder, check_own, check_rank, make_plan
    from secure_sccvfl.runs.member.plan import approve as sign_plan

    config = load_session(options.session)
    if not options.yes and (options.json or not sys.stdin.isatty()):
        raise ConfigError("nobody can be asked here: --yes approves without a question")
    check_rank(config, options.rank)
    credentials = Credentials.of(options.certs, node_folder(options.rank, config.dealer))
    check_own(config, credentials, options.rank)
    agreed = make_plan(config)
    if not options.json:
        for line in plan_lines(agreed, outlook(config, agreed, options.rank)):
            say(line)
    question = f"approve it as {config.node_name(options.rank)}? yes or no: "
    if not options.yes and input(question).strip().lower() not in ("y", "yes"):
        say("approve: nothing was signed", error=True)
        return CHECK_FAILED
    path = sign_plan(config, agreed, credentials, options.rank, approvals_folder(options.session))
    record = {"approval": str(path), "digest": agreed.digest}
    return answer(options, record, f"signed {path}: hand it to the other parties")


@program(
    "raise-cap",
    argument("action", choices=("draft", "sign", "show"), help="what to do"),
    argument("file", type=Path, help="the decision, cap.toml"),
    argument("--ledger", type=Path, help="draft: the folder of a party's ledgers"),
    argument("--test", action="store_true", help="draft: the ledger of test records, not of training"),
    argument("--epsilon", type=float, help="draft: the new cap"),
    argument("--reason", help="draft: why, for everybody who reads the ledger later"),
    argument("--certs", type=Path, help="sign: the folder with this party's certificate and key"),
    argument("--rank", type=int, help="sign: this party's number"),
)
def raise_cap(options: argparse.Namespace) -> int:
    """Raise the cap of a consortium's ledger: a decision that every party signs with its own key.

        sccvfl raise-cap draft cap.toml --ledger sccvfl-ledgers/party-0 --epsilon 12 --reason "yearly review"
        sccvfl raise-cap sign cap.toml --certs certs --rank 0
        sccvfl raise-cap show cap.toml

    One party drafts it, each signs the same file in turn, and all put it next to the session file, with
    cap = "cap.toml" and the new epsilon among its options. The next session checks all signatures against
    the certificates that the session file pins, and writes the decision into every ledger. A party that does
    not sign is enough to keep the cap. --test is about the ledger of test records.
    """
    from secure_sccvfl.accounting.ledger import LedgerError
    from secure_sccvfl.protocols.net.certificates import Credentials, spoken
    from secure_sccvfl.releases.ledgers import (
        EVALUATIONS,
        LEDGER,
        draft_decision,
        read_decision,
        signed_by,
        write_decision,
    )

    needed = {"draft": ("ledger", "epsilon", "reason"), "sign": ("certs", "rank"), "show": ()}[options.action]
    if missing := [name for name in needed if getattr(options, name) is None]:
        raise ConfigError(f"{options.action} needs --{missing[0]}")
    if options.action == "draft":
        if options.file.exists():
            raise ConfigError(f"{options.file} exists: a decision is drafted once, then signed")
        ledger = options.ledger / (EVALUATIONS if options.test else LEDGER)
        try:
            decision = draft_decision(ledger, options.epsilon, options.reason, datetime.date.today().isoformat())
        except LedgerError as error:
            raise ConfigError(str(error)) from None
        write_decision(options.file, decision)
    else:
        decision = read_decision(options.file)
    if options.action == "sign":
        folder = f"party-{options.rank}"
        decision = signed_by(decision, Credentials.of(options.certs, folder), folder)
        write_decision(options.file, decision)
    signers = sorted(decision.signed)
    return answer(
        options,
        {**decision.content, "digest": decision.digest, "signed": signers},
        f"{decision.ledger}: from epsilon {decision.before:g} to {decision.after:g} at delta {decision.delta:g}, "
        f"{decision.date}: {decision.reason}",
        f"signed by {', '.join(signers) if signers else 'nobody yet'}; digest {spoken(decision.digest)}",
    )
