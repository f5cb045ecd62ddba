"""What a member tells the others in a preflight, and what differs at a peer: public facts; no record is read."""

from __future__ import annotations

from collections.abc import Mapping

from secure_sccvfl.protocols.config import SessionConfig, code_parts
from secure_sccvfl.protocols.net.preflight import CLOCK_SECONDS, Met
from secure_sccvfl.protocols.net.rendezvous import settings_by_key

KINDS = {"code": "versions", "setting": "session file", "plan": "plan"}


def facts_of(config: SessionConfig, node: int) -> dict[str, str]:
    """Versions, settings of the session file, and at a party the digests of the plan's sections, by their kind."""
    facts = {f"code {key}": value for key, value in code_parts().items()}
    facts |= {f"setting {key}": value for key, value in settings_by_key(config).items()}
    if node < config.dealer:
        from secure_sccvfl.runs.member.plan import make_plan  # imports torch, which the dealer need not have

        facts |= {f"plan {section}": digest for section, digest in make_plan(config).digests.items()}
    return facts


def verdict(peer: Met, facts: Mapping[str, str]) -> tuple[str, list[str]]:
    """A line about a peer, and what is wrong with it."""
    if peer.problem:
        return f"{peer.name}: {peer.problem}", [peer.problem]
    parts, problems = [f"round trip {peer.round_trip * 1000:.1f} ms", f"clock {peer.ahead:+.2f} s"], list[str]()
    if not abs(peer.ahead) <= CLOCK_SECONDS:  # also if it is not a number
        problems.append(f"its clock is {peer.ahead:+.0f} s ahead of ours: set one of them")
    for kind, name in KINDS.items():
        differing = peer.differing(facts, kind)
        if differing:
            found = list(differing if kind == "plan" else differing.values())[:3]
            problems.append(f"{name} differ{'s' * (kind != 'code')}: {'; '.join(found)}")
        elif differing is None and kind == "code":
            problems.append("told no versions")
        equal = "not compared" if differing is None else "DIFFERENT" if differing else "equal"
        parts.append(f"{name} {equal}")
    return f"{peer.name}: {', '.join(parts)}", problems
