"""NVIDIA FLARE starts and watches the members of a session; shares travel over the session's own connections.

    sccvfl flare site kit-hospital --home /srv/sccvfl --member party-0    once at each site, and at FLARE's server
    sccvfl flare job session.toml --out job                               then `nvflare job submit -j job`
    sccvfl flare job session.toml --action resume --out job-resume

`sccvfl flare COMMAND --help` has details; docs/engines.md has all steps. FLARE comes with the extra `flare`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secure_sccvfl.config.session_file import load_session
from secure_sccvfl.launch.arguments import Main, Parser, answer, argument, program
from secure_sccvfl.protocols.config import DEALER, ConfigError
from secure_sccvfl.runs.member.orchestrated import ACTIONS, Site

FLARE = "secure_sccvfl.runs.member.flare"
CLASSES = CONTROLLER, EXECUTOR = f"{FLARE}.SessionController", f"{FLARE}.SessionExecutor"
RIGHTS = ("submit_job", "view", "manage_job", "download_job", "operate")
"""What a role keeps whose rights are not listed: "any", FLARE's default for its administrator, allows code too."""


@program(
    "flare job",
    argument("session", type=Path, help="the session file, the same at all sites"),
    argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder for the job"),
    argument("--action", choices=ACTIONS, default="run", help="run (default), resume, or predict new records"),
    argument("--sites", nargs="+", help="FLARE's names of the sites by rank, the dealer last (default: the names of"
             " the parties, and dealer)"),
)  # fmt: skip
def _job(options: argparse.Namespace) -> int:
    """Make a job for `nvflare job submit`: the digest of the session file, the action, and the sites; no code.

        sccvfl flare job session.toml --out job
        sccvfl flare job session.toml --sites hospital clinic payer notary --out job

    It writes FOLDER/meta.json, FOLDER/app/config/config_fed_server.json and config_fed_client.json.
    """
    config = load_session(options.session)
    sites = options.sites or [*config.names, DEALER]
    if len(sites) != len(config.parties) + 1 or len(set(sites)) != len(sites):
        raise ConfigError(f"--sites must name {len(config.parties) + 1} sites, by rank and the dealer last")
    asked = {"session": hashlib.sha256(options.session.read_bytes()).hexdigest(), "action": options.action}
    meta = {
        "name": f"sccvfl-{config.name}-{options.action}",
        "resource_spec": {},
        "deploy_map": {"app": ["server", *sites]},
        "min_clients": len(sites),
        "mandatory_clients": sites,
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "session", "path": CONTROLLER, "args": {**asked, "sites": sites}}],
    }
    client = {"format_version": 2, "executors": [{"tasks": ["sccvfl"], "executor": {"path": EXECUTOR, "args": {}}}]}
    if options.out.exists():
        raise ConfigError(f"{options.out} is there already; name another folder with --out")
    (options.out / "app" / "config").mkdir(parents=True)
    _write(options.out / "meta.json", meta)
    _write(options.out / "app" / "config" / "config_fed_server.json", server)
    _write(options.out / "app" / "config" / "config_fed_client.json", client)
    return answer(options, {**asked, "sites": sites}, f"wrote {options.out}, for session file {asked['session']}")


@program(
    "flare site",
    argument("kit", type=Path, help="the startup kit of this site, as `nvflare provision` made it"),
    argument("--home", type=Path, help="the folder with this member's session files, certs, approvals and table"),
    argument("--member", help="party-0, party-1, ... or dealer; leave out at FLARE's server"),
    argument("--records", default="new.csv", help="file of new records in --home, for predictions (default new.csv)"),
)
def _site(options: argparse.Namespace) -> int:
    """Restrict what FLARE may start at this site, and say which member of the session it is.

        sccvfl flare site kit-hospital --home /srv/sccvfl --member party-0
        sccvfl flare site kit-server

    It writes KIT/local/resources.json (jobs may use two classes of this package and no others; logs are not streamed
    to the server), KIT/local/authorization.json (no job may bring code, nobody may run shell commands), and at a
    member KIT/local/sccvfl.json. Then restart the site. A job writes HOME/jobs/JOB/log.txt and cause.json, and the
    run's folder HOME/out-NAME, where NAME is that of the session.
    """
    local = options.kit / "local"
    if (options.member is None) != (options.home is None):
        raise ConfigError("--home and --member go together; FLARE's server has neither")
    if options.member is None and not (options.kit / "startup" / "fed_server.json").exists():
        raise ConfigError(f"{options.kit} is no server's kit: name --home and --member")
    resources, policy = _read(local / "resources.json"), _read(local / "authorization.json")
    resources |= {
        "class_allow_list": CLASSES,
        "class_list_enforcement_mode": "enforce",
        "app_validator": {"path": f"{FLARE}.JobValidator", "args": {}},
        "allow_log_streaming": False,
    }
    for role, rights in policy["permissions"].items():
        named = rights if isinstance(rights, dict) else dict.fromkeys(RIGHTS, rights)
        policy["permissions"][role] = {**named, "byoc": "none", "shell_commands": "none"}
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", policy)
    if options.member is not None:
        _write(local / "sccvfl.json", asdict(Site(str(options.home.resolve()), options.member, options.records)))
    return answer(options, {"classes": CLASSES, "member": options.member}, f"wrote {local}: restart the site")


def _read(path: Path) -> dict[str, Any]:
    """FLARE's own settings: those in use, else its default."""
    file = path if path.exists() else path.with_name(f"{path.name}.default")
    if not file.exists():
        raise ConfigError(f"{file} is missing: give the startup kit of this site")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


COMMANDS: dict[str, Main] = {"job": _job, "site": _site}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, json=False)
    parser.add_argument("command", choices=COMMANDS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    return COMMANDS[parser.parse_args(given[:1]).command](given[1:])


if __name__ == "__main__":
    sys.exit(main())
