"""A member's start-up kit: an archive with the public files that it needs and its commands in order; no private key.

Whoever has the session file and the authority's public folder makes the kits. A kit holds what docs/operating.md
fetches one by one: session file, data description, policy card and cap decision if they are named, the authority's
certificate, and the member's own. Table, private key and approvals come from the members themselves.
"""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.protocols.config import ConfigError, SessionConfig, node_folder
from secure_sccvfl.protocols.net.certificates import AUTHORITY, ISSUED, fingerprint, spoken
from secure_sccvfl.runs.member.plan import approvals_folder, make_plan

COMMANDS = "commands.txt"
NAMED = ("dataset", "card", "cap")
"""Options of a session file that may name a file."""


def kit_of(config: SessionConfig, session: Path, node: int, authority: Path) -> dict[str, bytes]:
    """The files of a member's kit by their names; ConfigError if one is missing, or is not for this session."""
    member, folder = node_folder(node, config.dealer), session.resolve().parent
    if not config.certificates:
        raise ConfigError(f"{session} pins no certificates: first `sccvfl certs pin {session.name} {authority}`")
    issued = authority / ISSUED / f"{member}.pem"
    files = {session.name: session, AUTHORITY: authority / AUTHORITY, f"{member}.pem": issued}
    if node < config.dealer:
        named = [Path(str(config.options[name])) for name in NAMED if config.options.get(name)]
        public = [path for path in named if path.suffix in (".toml", ".json")]
        if odd := [path for path in public if path.name != str(path) or not (folder / path).is_file()]:
            raise ConfigError(f"{session} names {odd[0]}, which is not next to it: put it there")
        files |= {path.name: folder / path for path in public}
    if lost := [path for path in files.values() if not path.is_file()]:
        raise ConfigError(
            f"a kit of {member} needs {lost[0]}, which is not there: sign its request, or name --authority"
        )
    kit = {name: path.read_bytes() for name, path in files.items()}
    if secret := [name for name, content in kit.items() if b"PRIVATE KEY" in content]:
        raise ConfigError(f"{files[secret[0]]} holds a private key: it must not leave its host; nothing was written")
    if fingerprint(kit[f"{member}.pem"]) != config.certificates[member]:
        raise ConfigError(f"{issued} is not the certificate that {session} pins for {member}: pin it first")
    return {**kit, COMMANDS: _commands(config, session, node).encode()}


def write_kit(path: Path, files: dict[str, bytes]) -> None:
    """A new archive."""
    if path.exists():
        raise ConfigError(f"{path} is there already; remove it, or name another folder with --out")
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _commands(config: SessionConfig, session: Path, node: int) -> str:
    """All commands of a member from its kit to new predictions, as a shell reads them."""
    member, file = node_folder(node, config.dealer), shlex.quote(session.name)
    dealer = node == config.dealer
    preflight = f"sccvfl preflight {file} --certs certs {'--dealer' if dealer else f'--rank {node}'}"
    whom = plain(f"{config.node_name(node)} of {config.name}")
    lines = [
        f"# {whom}: run these in order, in the folder that has certs/" + ("" if dealer else " and your table"),
        f"# The digest of the plan: {spoken(make_plan(config).digest)}. Compare it with the other members by voice.",
        f"sccvfl certs install {member}.pem {AUTHORITY} certs",
    ]
    if dealer:
        lines += ["# When all parties have approved: meet all members within a minute, then start within ten."]
        lines += [preflight, f"sccvfl dealer --config {file} --certs certs"]
        lines += ["# Serve a prediction:", f"sccvfl dealer predict --config {file} --certs certs"]
        return "\n".join([*lines, ""])
    dataset, approvals = str(config.options.get("dataset", "")), approvals_folder(session).name
    if dataset.endswith(".toml") and config.names:
        lines += [f"sccvfl check {shlex.quote(dataset)} --party {shlex.quote(config.names[node])}"]
    common = f"--rank {node} --config {file} --certs certs --out out"
    lines += [
        f"sccvfl approve {file} --certs certs --rank {node}",
        f"# Send {approvals}/{member}.json to the other parties, and put theirs into {approvals}/.",
        "# Meet all members within a minute, then start within ten.",
        preflight,
        f"sccvfl party {common}",
        "# When it has ended:",
        f"sccvfl audit verify out --certs certs --config {file}",
        "# New records, in a file with your columns; all parties and the dealer start together:",
        f"sccvfl party predict {common} --records new.csv",
    ]
    return "\n".join([*lines, ""])
