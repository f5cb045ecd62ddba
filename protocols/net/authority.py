"""The consortium's authority: at one place, with one key, it signs requests of members and nothing else.

It is trusted to give each place to the right organisation when a session file is first written, and with nothing
afterwards. A session file pins the fingerprint of every certificate, so one that the authority makes for itself later
is accepted nowhere (`rendezvous`). Its register says what it signed and what was revoked. A key that was ever signed
is never signed again. That binds this program; what binds the authority itself are the pins.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from protocols.config import ConfigError
from protocols.net.certificates import (
    AUTHORITY,
    Key,
    certify,
    check_days,
    pem,
    place_named,
    read_certificate,
    read_key,
    self_signed,
    subject,
    write_key,
)
from protocols.net.enrolment import SHOWN, Member, common_name, key_fingerprint

AUTHORITY_KEY, REGISTER, ISSUED = "ca-key.pem", "register.jsonl", "issued"
SHORTEST = 12
"""Characters of a passphrase."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for, after its checks."""

    place: str
    name: str
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        return key_fingerprint(self.key)


def read_request(path: Path) -> Asked:
    """A request that may be signed, or ConfigError.

    Its sender must hold the key (P-256), and it must ask for one place of a session and for nothing else.
    """
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        extensions, key = request.extensions, request.public_key()
    except OSError as error:
        raise ConfigError(f"cannot read the request {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError(f"{path} is not a request for a certificate in PEM form") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise ConfigError(f"{path}: its key is not one of the elliptic curve P-256")
    if not request.is_signature_valid:
        raise ConfigError(f"{path}: whoever made it does not hold its key")
    place = place_named(extensions)
    if place is None:
        raise ConfigError(f"{path}: it must name one place of a session, and nothing besides")
    if more := [one for one in extensions if not isinstance(one.value, x509.SubjectAlternativeName)]:
        what = getattr(more[0].oid, "_name", more[0].oid.dotted_string)
        raise ConfigError(f"{path}: it asks for more than a place ({what}); nothing was signed")
    name = common_name(request.subject)
    subject(name)  # what a certificate cannot be called is refused now, before another request is signed
    return Asked(place, name, key)


class Authority:
    """One folder: ca.pem, its key, the register, and the certificates that were issued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / AUTHORITY_KEY).exists():
            raise ConfigError(f"{folder} holds no authority's key; `sccvfl certs authority` makes one")
        self.certificate = read_certificate(folder / AUTHORITY)

    @classmethod
    def create(cls, folder: Path, passphrase: bytes | None = None, days: int = 3650) -> Authority:
        """A new authority in a new folder. With a passphrase its key is encrypted on disk."""
        check_days(days)
        if passphrase is not None and len(passphrase) < SHORTEST:
            raise ConfigError(f"a passphrase has at least {SHORTEST} characters")
        for file in (AUTHORITY, AUTHORITY_KEY):
            if (folder / file).exists():
                raise ConfigError(f"{folder} already holds {file}; choose a new folder")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        write_key(folder / AUTHORITY_KEY, key, passphrase)
        (folder / AUTHORITY).write_bytes(pem(self_signed("sccvfl consortium", key, days)))
        (folder / REGISTER).touch(mode=0o600)
        return cls(folder)

    @property
    def is_encrypted(self) -> bool:
        return b"ENCRYPTED" in (self.folder / AUTHORITY_KEY).read_bytes().splitlines()[0]

    @property
    def register(self) -> list[dict[str, Any]]:
        """Every certificate that was signed, and every key that was revoked, in order."""
        try:
            return [json.loads(line) for line in (self.folder / REGISTER).read_text(encoding="utf-8").splitlines()]
        except OSError as error:
            raise ConfigError(f"cannot read {self.folder / REGISTER}: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"{self.folder / REGISTER} is damaged: bring back the last good copy") from None

    def sign(
        self, requests: Sequence[Path], passphrase: bytes | None = None, *, renew: bool = False, days: int = 365
    ) -> list[tuple[Member, Path]]:
        """Certificates for these requests, in `issued/`; if one cannot be signed, none is."""
        check_days(days)
        asked = [read_request(path) for path in requests]
        if len({one.place for one in asked}) < len(asked) or len({one.fingerprint for one in asked}) < len(asked):
            raise ConfigError("two requests are for the same place or of the same key; nothing was signed")
        key = read_key(self.folder / AUTHORITY_KEY, passphrase)
        for one in asked:
            self._check(one, key, renew)
        (self.folder / ISSUED).mkdir(exist_ok=True, mode=0o700)
        made = []
        for one in asked:
            certificate = certify(self.certificate, key, one.key, one.place, one.name, days)
            member = Member.of(certificate)
            self._write("signed", {**member.as_record(), "until": member.end.isoformat()})
            path = self.folder / ISSUED / f"{one.place}.pem"
            path.write_bytes(pem(certificate))
            made.append((member, path))
        return made

    def revoke(self, print_: str) -> dict[str, Any]:
        """Note that a certificate is revoked: its key is never signed again, and its place is free for another."""
        signed = [line for line in self.register if line["kind"] == "signed" and line["fingerprint"] == print_]
        if not signed:
            raise ConfigError(f"this authority did not sign a certificate {print_[:SHOWN]}...")
        if print_ in self._revoked():
            raise ConfigError(f"the certificate {print_[:SHOWN]}... is revoked already")
        line = {k: signed[-1][k] for k in ("place", "name", "fingerprint", "key")}
        self._write("revoked", line)
        issued = self.folder / ISSUED / f"{line['place']}.pem"
        if issued.exists() and Member.of(read_certificate(issued)).fingerprint == print_:
            issued.unlink()  # so that nobody hands it out or pins it
        return line

    def _check(self, asked: Asked, key: Key, renew: bool) -> None:
        register, revoked = self.register, self._revoked()
        if asked.fingerprint == key_fingerprint(key.public_key()):
            raise ConfigError(f"the request for {asked.place} has the authority's own key; nothing was signed")
        for line in register:
            if line["kind"] == "signed" and line["key"] == asked.fingerprint:
                word = "revoked" if line["fingerprint"] in revoked else "signed before"
                raise ConfigError(
                    f"the key of the request for {asked.place} was {word}: make a new one (`request --renew`)"
                )
        now = datetime.datetime.now(datetime.UTC)
        for line in register:
            held = line["kind"] == "signed" and line["place"] == asked.place and line["fingerprint"] not in revoked
            if held and datetime.datetime.fromisoformat(line["until"]) > now and not renew:
                raise ConfigError(
                    f"{asked.place} has a valid certificate already ({line['name']}, {line['fingerprint'][:SHOWN]}): "
                    "--renew signs another"
                )

    def _revoked(self) -> set[str]:
        return {line["fingerprint"] for line in self.register if line["kind"] == "revoked"}

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with open(self.folder / REGISTER, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "time": now, **content}) + "\n")
