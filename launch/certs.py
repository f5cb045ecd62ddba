"""Certificates of a consortium. Each host makes its own key; an authority signs; a session file pins.

    sccvfl certs request certs --member party-0 --name bank     on each host: its key, which stays, and a request
    sccvfl certs authority authority                            once, on one host
    sccvfl certs sign request-party-0.pem --authority authority
    sccvfl certs install party-0.pem ca.pem certs
    sccvfl certs pin session.toml certs/party-0/cert.pem        whom the session file accepts
    sccvfl certs show certs                                     members, validity, fingerprints
    sccvfl certs request certs --member party-0 --name bank --renew
    sccvfl certs revoke authority/issued/party-0.pem --authority authority
    python launch/certs.py throwaway --parties 3                a whole set on one machine

`sccvfl certs COMMAND --help` has details; docs/operating.md has all steps. Without a command, a whole
set is made in a new folder: all keys on one machine, for a test or a run on that machine: ca.pem, and
party-0/, party-1/, ..., dealer/ with cert.pem and key.pem. Its authority's key is never written, so nobody can be
added later.
"""

from __future__ import annotations

import argparse
import datetime
import getpass
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from secure_sccvfl.launch.arguments import Main, answer, argument, did_you_mean, program
from secure_sccvfl.protocols.config import ConfigError, node_folder
from secure_sccvfl.runs.console import CHECK_FAILED, OK, WRONG_USE, say

if TYPE_CHECKING:
    from secure_sccvfl.protocols.net.certificates import Authority


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in COMMANDS:
        if given and len(given) > 1 and (meant := did_you_mean(given[0], COMMANDS)):
            say(f"certs: no command {given[0]!r}{meant}", error=True)
            return WRONG_USE
        return whole_set(given)
    words = [re.sub(r"^--place(?==|$)", "--member", word) for word in given[1:]]  # its name until November 2026
    return COMMANDS[given[0]](words)


@program(
    "certs",
    argument("folder", type=Path, help="a new folder for the set"),
    argument("--parties", type=int, default=3, help="number of parties (default 3)"),
    argument("--days", type=int, default=365, help="how long they are valid (default 365)"),
)
def whole_set(options: argparse.Namespace) -> int:
    from secure_sccvfl.protocols.net.certificates import make_certificates

    folders = [str(path) for path in make_certificates(options.folder, options.parties, options.days)]
    return answer(options, {"made": folders}, *(f"made {path}" for path in folders))


@program(
    "certs request",
    argument("folder", type=Path, help="this host's folder of certificates; the key stays in it"),
    argument("--member", required=True, help="party-0, party-1, ... or dealer, as in the session file"),
    argument("--name", required=True, help="what the certificate calls this member"),
    argument("--renew", action="store_true", help="make a new key next to the one in use"),
)
def _request(options: argparse.Namespace) -> int:
    """Make this host's key, which stays here, and a request for its certificate.

    In FOLDER it writes MEMBER/key.pem (with --renew next-key.pem, until `install`) and request-MEMBER.pem.
    """
    from secure_sccvfl.protocols.net.certificates import make_request, spoken

    path, key = make_request(options.folder, options.member, options.name, renew=options.renew)
    return answer(
        options,
        {"request": str(path), "key": key},
        f"made {path}: send it to the authority",
        f"its key is {spoken(key)}: read this to the authority by voice",
    )


@program(
    "certs authority",
    argument("folder", type=Path, help="a new folder for the authority; keep it off the parties' hosts"),
    argument("--days", type=int, default=3650, help="how long it is valid (default 3650)"),
    argument("--passphrase-file", type=Path, help="encrypt its key with the passphrase in this file"),
    argument("--ask", action="store_true", help="ask for a passphrase"),
)
def _authority(options: argparse.Namespace) -> int:
    """Make the consortium's authority, on one host: in FOLDER it writes ca.pem, ca-key.pem and register.jsonl."""
    from secure_sccvfl.protocols.net.certificates import AUTHORITY, Authority, fingerprint, pem, spoken

    passphrase = _from_file(options.passphrase_file)
    if passphrase is None and options.ask:
        passphrase = _asked("passphrase of the authority's key: ", twice=True)
    authority = Authority.create(options.folder, passphrase, options.days)
    print_ = fingerprint(pem(authority.certificate))
    protection = "encrypted" if authority.is_encrypted else "NOT encrypted: whoever reads this folder can sign"
    return answer(
        options,
        {"authority": str(options.folder / AUTHORITY), "fingerprint": print_, "encrypted": authority.is_encrypted},
        f"made {options.folder / AUTHORITY}: {spoken(print_)}",
        f"its key stays in {options.folder}, {protection}",
    )


@program(
    "certs sign",
    argument("requests", type=Path, nargs="+", help="requests of members"),
    argument("--authority", type=Path, required=True, help="the authority's folder"),
    argument("--days", type=int, default=365, help="how long the certificates are valid (default 365)"),
    argument("--renew", action="store_true", help="also for members that have a valid certificate"),
    argument("--passphrase-file", type=Path, help="of the authority's key (default: ask, if encrypted)"),
)
def _sign(options: argparse.Namespace) -> int:
    """Sign requests. Compare the key's fingerprint with its holder by voice: five groups of four characters.

    In the authority's folder it writes issued/MEMBER.pem and a line in register.jsonl.
    """
    from secure_sccvfl.protocols.net.certificates import Authority, spoken

    authority = Authority(options.authority)
    passphrase = _passphrase(authority, options.passphrase_file)
    signed = authority.sign(options.requests, passphrase, renew=options.renew, days=options.days)
    lines = [
        line
        for m, path in signed
        for line in (
            f"signed {path}: {m.node}, {m.name}, until {m.end:%F}",
            f"  certificate {spoken(m.fingerprint)}",
            f"  key {spoken(m.key)}: is it what its holder reads out?",
        )
    ]
    return answer(options, [{**m.as_record(), "file": str(path)} for m, path in signed], *lines)


@program(
    "certs install",
    argument("certificate", type=Path, help="the signed certificate"),
    argument("authority", type=Path, help="ca.pem of the authority"),
    argument("folder", type=Path, help="this host's folder of certificates"),
)
def _install(options: argparse.Namespace) -> int:
    """Put a signed certificate next to its key, if they fit: FOLDER/MEMBER/cert.pem and FOLDER/ca.pem."""
    from secure_sccvfl.protocols.net.certificates import install, spoken

    member = install(options.certificate, options.authority, options.folder)
    return answer(
        options,
        member.as_record(),
        f"installed in {options.folder / member.node}, until {member.end:%F}: {spoken(member.fingerprint)}",
    )


@program(
    "certs show", argument("folder", type=Path, help="a folder of certificates, of an authority, or one certificate")
)
def _show(options: argparse.Namespace) -> int:
    """Members, validity and fingerprints: as they are read out; whole with --json."""
    from secure_sccvfl.protocols.net.certificates import members, spoken

    listed = members(options.folder)
    lines = [f"{m.node}  {m.name}  {m.start:%F} to {m.end:%F}  {spoken(m.fingerprint)}" for m in listed]
    return answer(options, [m.as_record() for m in listed], *lines)


@program(
    "certs pin",
    argument("session", type=Path, help="the session file"),
    argument("certificates", type=Path, nargs="*", help="certificates, or folders of them"),
    argument("--drop", action="append", default=[], metavar="MEMBER", help="no longer accept this member's"),
    argument("--print", action="store_true", help="print the session file instead of writing it"),
)
def _pin(options: argparse.Namespace) -> int:
    """Write the certificates that a session accepts into its file."""
    from secure_sccvfl.config.session_file import load_session
    from secure_sccvfl.protocols.net.certificates import members, pinned, spoken

    add = [member for path in options.certificates for member in members(path)]
    if len({member.node for member in add}) < len(add):
        raise ConfigError("two certificates are for the same member: name the one to pin")
    now = datetime.datetime.now(datetime.UTC)
    if ended := [member for member in add if not member.valid(now)]:
        raise ConfigError(f"the certificate of {ended[0].node} is not valid now, but until {ended[0].end:%F}")
    if not add and not options.drop:
        raise ConfigError("name the certificates to pin, or --drop a member")
    text = options.session.read_text(encoding="utf-8-sig")
    nodes = _members_of(text, options.session)
    if strangers := [member.node for member in add if member.node not in nodes]:
        raise ConfigError(
            f"{options.session} has no {strangers[0]}, but {', '.join(nodes)}: first add its address to parties and "
            "its name to names; nothing was written"
        )
    text = pinned(text, add, options.drop)
    if not options.print:
        part = options.session.with_name(options.session.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, options.session)
    if options.json:
        return answer(options, {m.node: m.fingerprint for m in add})
    if options.print:
        print(text)
        return OK
    for m in add:
        say(f"pinned {m.node}  {m.name}  {spoken(m.fingerprint)}")
    try:
        load_session(options.session)
    except ConfigError as error:
        say(f"certs pin: {options.session} is not complete yet: {error}", error=True)
        return CHECK_FAILED
    return OK


def _members_of(text: str, session: Path) -> list[str]:
    """The members of a session file whose pins may not be complete yet."""
    try:
        parties = tomllib.loads(text).get("parties", ())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{session} is not valid TOML: {error}") from None
    if not isinstance(parties, list) or not parties:
        raise ConfigError(f"{session} is no session file: it needs parties, a list of host:port; nothing was written")
    return [node_folder(node, len(parties)) for node in range(len(parties) + 1)]


@program(
    "certs revoke",
    argument("certificate", help="the certificate, or its fingerprint"),
    argument("--authority", type=Path, required=True, help="the authority's folder"),
)
def _revoke(options: argparse.Namespace) -> int:
    """Note in the authority's register.jsonl that a certificate is revoked; its key is never signed again."""
    from secure_sccvfl.protocols.net.certificates import Authority, members, spoken

    authority = Authority(options.authority)
    certificate = options.certificate
    prints = (
        [member.fingerprint for member in members(Path(certificate))] if Path(certificate).exists() else [certificate]
    )
    revoked = [authority.revoke(print_) for print_ in prints]
    lines = [
        text
        for line in revoked
        for text in (
            f"revoked {line['place']} ({line['name']}) {spoken(line['fingerprint'])}",
            "  what counts is that every session file loses it: "
            f"`sccvfl certs pin session.toml --drop {line['place']}`, or pin its new one",
        )
    ]
    return answer(options, revoked, *lines)


def _passphrase(authority: Authority, file: Path | None) -> bytes | None:
    if not authority.is_encrypted:
        return None
    return _from_file(file) or _asked("passphrase of the authority's key: ")


def _from_file(file: Path | None) -> bytes | None:
    return None if file is None else file.read_bytes().rstrip(b"\r\n")


def _asked(prompt: str, *, twice: bool = False) -> bytes:
    if not sys.stdin.isatty():
        raise ConfigError("the authority's key is encrypted: give --passphrase-file, or run this at a terminal")
    passphrase = getpass.getpass(prompt)
    if twice and getpass.getpass("once more: ") != passphrase:
        raise ConfigError("the two passphrases differ")
    return passphrase.encode()


COMMANDS: dict[str, Main] = {
    "request": _request,
    "authority": _authority,
    "sign": _sign,
    "install": _install,
    "show": _show,
    "pin": _pin,
    "revoke": _revoke,
}

if __name__ == "__main__":
    sys.exit(main())
