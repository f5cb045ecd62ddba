"""The commands of `sccvfl certs`: request, authority, sign, install, show, pin, revoke."""

from __future__ import annotations

import argparse
import datetime
import getpass
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.arguments import Parser
from protocols.config import ConfigError
from secure_sccvfl.runs.console import OK, guarded, say

if TYPE_CHECKING:
    from protocols.net.enrolment import Authority


def main(arguments: list[str]) -> int:
    """Run the command that the first argument names."""
    command, *rest = arguments
    about, fill, work = COMMANDS[command]
    parser = Parser(about)
    parser.prog = f"{parser.prog} {command}"
    fill(parser)
    options = parser.parse_args(rest)
    return guarded(f"certs {command}", lambda: work(options), debug=options.debug)


def _request(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import make_request

    path, key = make_request(options.folder, options.place, options.name, renew=options.renew)
    return _tell(
        options,
        {"request": str(path), "key": key},
        f"made {path}: send it to the authority\nits key is {key}: tell the authority by voice",
    )


def _authority(options: argparse.Namespace) -> int:
    from protocols.net.certificates import AUTHORITY, fingerprint, pem
    from protocols.net.enrolment import Authority

    passphrase = _from_file(options.passphrase_file)
    if passphrase is None and options.ask:
        passphrase = _asked("passphrase of the authority's key: ", twice=True)
    made = Authority.create(options.folder, passphrase, options.days)
    shown = fingerprint(pem(made.certificate))
    kept = "encrypted" if made.is_encrypted else "NOT encrypted: whoever reads this folder can sign"
    return _tell(
        options,
        {"authority": str(options.folder / AUTHORITY), "fingerprint": shown, "encrypted": made.is_encrypted},
        f"made {options.folder / AUTHORITY}: {shown}\nits key stays in {options.folder}, {kept}",
    )


def _sign(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import Authority

    authority = Authority(options.authority)
    passphrase = _passphrase(authority, options.passphrase_file)
    made = authority.sign(options.requests, passphrase, renew=options.renew, days=options.days)
    lines = [
        f"signed {path}: {m.place}, {m.name}, until {m.end:%F}\n  certificate {m.fingerprint}\n  key {m.key}"
        for m, path in made
    ]
    return _tell(options, [{**m.as_record(), "file": str(path)} for m, path in made], "\n".join(lines))


def _install(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import install

    member = install(options.certificate, options.authority, options.folder)
    return _tell(
        options,
        member.as_record(),
        f"installed in {options.folder / member.place}, until {member.end:%F}: {member.fingerprint}",
    )


def _show(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import members

    found = members(options.folder)
    lines = [f"{m.place}  {m.name}  {m.start:%F} to {m.end:%F}  {m.fingerprint}" for m in found]
    return _tell(options, [m.as_record() for m in found], "\n".join(lines))


def _pin(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import members, pinned
    from secure_sccvfl.config.session_file import load_session

    add = [member for path in options.certificates for member in members(path)]
    if len({member.place for member in add}) < len(add):
        raise ConfigError("two certificates are for the same place: name the one to pin")
    now = datetime.datetime.now(datetime.UTC)
    if ended := [member for member in add if not member.valid(now)]:
        raise ConfigError(f"the certificate of {ended[0].place} is not valid now, but until {ended[0].end:%F}")
    if not add and not options.drop:
        raise ConfigError("name the certificates to pin, or --drop a place")
    text = pinned(options.session.read_text(encoding="utf-8-sig"), add, options.drop)
    if not options.print:
        part = options.session.with_name(options.session.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, options.session)
    if options.json:
        return _tell(options, {m.place: m.fingerprint for m in add}, "")
    if options.print:
        print(text)
        return OK
    for m in add:
        say(f"pinned {m.place}  {m.name}  {m.fingerprint}")
    try:
        load_session(options.session)
    except ConfigError as error:
        say(f"certs pin: not complete yet: {error}", error=True)
    return OK


def _revoke(options: argparse.Namespace) -> int:
    from protocols.net.enrolment import Authority, members

    authority = Authority(options.authority)
    given = options.certificate
    prints = [member.fingerprint for member in members(Path(given))] if Path(given).exists() else [given]
    revoked = [authority.revoke(print_) for print_ in prints]
    lines = [
        f"revoked {line['place']} ({line['name']}) {line['fingerprint']}\n  what counts is that every session file "
        f"loses it: `sccvfl certs pin session.toml --drop {line['place']}`, or pin its new one"
        for line in revoked
    ]
    return _tell(options, revoked, "\n".join(lines))


def _tell(options: argparse.Namespace, record: Any, lines: str) -> int:
    if options.json:
        print(json.dumps(record))
    else:
        for line in lines.splitlines():
            say(line)
    return OK


def _passphrase(authority: Authority, file: Path | None) -> bytes | None:
    if not authority.is_encrypted:
        return None
    return _from_file(file) or _asked("passphrase of the authority's key: ")


def _from_file(file: Path | None) -> bytes | None:
    return None if file is None else file.read_bytes().rstrip(b"\r\n")


def _asked(prompt: str, *, twice: bool = False) -> bytes:
    if not sys.stdin.isatty():
        raise ConfigError("the authority's key is encrypted: give --passphrase-file, or run this at a terminal")
    said = getpass.getpass(prompt)
    if twice and getpass.getpass("once more: ") != said:
        raise ConfigError("the two passphrases differ")
    return said.encode()


def _of_request(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="this host's folder of certificates; the key stays in it")
    parser.add_argument("--place", required=True, help="party-0, party-1, ... or dealer, as in the session file")
    parser.add_argument("--name", required=True, help="what the certificate calls this member")
    parser.add_argument("--renew", action="store_true", help="make a new key beside the one in use")


def _of_authority(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="a new folder for the authority; keep it off the parties' hosts")
    parser.add_argument("--days", type=int, default=3650, help="how long it is valid (default 3650)")
    parser.add_argument("--passphrase-file", type=Path, help="encrypt its key with the passphrase in this file")
    parser.add_argument("--ask", action="store_true", help="ask for a passphrase")


def _of_sign(parser: Parser) -> None:
    parser.add_argument("requests", type=Path, nargs="+", help="requests of members")
    parser.add_argument("--authority", type=Path, required=True, help="the authority's folder")
    parser.add_argument("--days", type=int, default=365, help="how long the certificates are valid (default 365)")
    parser.add_argument("--renew", action="store_true", help="also for places that have a valid certificate")
    parser.add_argument("--passphrase-file", type=Path, help="of the authority's key (default: ask, if encrypted)")


def _of_install(parser: Parser) -> None:
    parser.add_argument("certificate", type=Path, help="the signed certificate")
    parser.add_argument("authority", type=Path, help="ca.pem of the authority")
    parser.add_argument("folder", type=Path, help="this host's folder of certificates")


def _of_show(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, help="a folder of certificates, of an authority, or one certificate")


def _of_pin(parser: Parser) -> None:
    parser.add_argument("session", type=Path, help="the session file")
    parser.add_argument("certificates", type=Path, nargs="*", help="certificates, or folders of them")
    parser.add_argument("--drop", action="append", default=[], metavar="PLACE", help="no longer accept this place's")
    parser.add_argument("--print", action="store_true", help="print the session file instead of writing it")


def _of_revoke(parser: Parser) -> None:
    parser.add_argument("certificate", help="the certificate, or its fingerprint")
    parser.add_argument("--authority", type=Path, required=True, help="the authority's folder")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None], Callable[[argparse.Namespace], int]]] = {
    "request": (
        "Make this host's key, which stays here, and a request for its certificate.",
        _of_request,
        _request,
    ),
    "authority": ("Make the consortium's authority, at one place.", _of_authority, _authority),
    "sign": ("Sign requests. Compare the key's fingerprint with its holder by voice.", _of_sign, _sign),
    "install": ("Put a signed certificate beside its key, if they fit.", _of_install, _install),
    "show": ("Places, validity and fingerprints.", _of_show, _show),
    "pin": ("Write the certificates that a session accepts into its file.", _of_pin, _pin),
    "revoke": (
        "Note that a certificate is revoked; its key is never signed again.",
        _of_revoke,
        _revoke,
    ),
}
"""Help, arguments and work of each."""
