"""How members of a consortium get certificates: requests, the authority that signs them, and pins in session files.

| step | who | holds before | sends | learns |
|---|---|---|---|---|
| `make_request` | a member | nothing | its public key, node and name, signed with the new key | nothing |
| `Authority.sign` | the authority | its own key | the certificate, public | which key belongs to which node |
| `install` | the member | its key | nothing | whether the certificate is for this key |

Keys never leave their host. What crosses is public and may travel by mail; people compare the fingerprint of the key
by voice, so that nobody's request is taken for another's. A renewal makes a new key next to the old one, which stays
in use until the new certificate is installed.

The authority is trusted to assign each node to the right organisation when a session file is first written, and with
nothing afterwards: a session file pins the fingerprint of every certificate, so one that the authority makes for
itself later is accepted nowhere. Its register lists what it signed and what was revoked. A key that was ever signed
is never signed again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocols.config import ConfigError
from protocols.net.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    Key,
    alternative_name,
    certify,
    check_days,
    check_node,
    fingerprint,
    named_node,
    pem,
    read_certificate,
    read_key,
    self_signed,
    subject,
    write_key,
)

NEXT_KEY = "next-key.pem"
SHOWN = 8
"""Digits of a fingerprint in messages; people compare all of them."""


@dataclass(frozen=True)
class Member:
    """What a certificate says of its holder. `key` is the fingerprint of the public key."""

    node: str
    name: str
    start: datetime.datetime
    end: datetime.datetime
    fingerprint: str
    key: str

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Member:
        node = named_node(certificate.extensions)
        if node is None:
            raise ConfigError("this certificate names no member of a session")
        return cls(
            node,
            common_name(certificate.subject),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            fingerprint(pem(certificate)),
            key_fingerprint(certificate.public_key()),
        )

    def valid(self, now: datetime.datetime) -> bool:
        return self.start <= now <= self.end

    def as_record(self) -> dict[str, str]:
        days = {"from": self.start.date().isoformat(), "until": self.end.date().isoformat()}
        return {"place": self.node, "name": self.name, **days, "fingerprint": self.fingerprint, "key": self.key}


def common_name(name: x509.Name) -> str:
    """What a certificate or a request calls its holder."""
    return "".join(str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME))


def key_fingerprint(key: object) -> str:
    """SHA-256 of a public key, in hexadecimal digits."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError("a key of a member is one of the elliptic curve P-256")
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def make_request(folder: Path, node: str, name: str, *, renew: bool = False) -> tuple[Path, str]:
    """A new key in `folder`, and a request for its certificate; returns its path and the key's fingerprint."""
    own = folder / check_node(node)
    holder = subject(name)
    current, waiting = own / KEY, own / NEXT_KEY
    if current.exists() and not renew:
        raise ConfigError(f"{current} already exists; --renew makes a new key next to it")
    if renew and not current.exists():
        raise ConfigError(f"there is no {current} to renew; leave --renew out")
    if waiting.exists():
        raise ConfigError(f"a renewal waits for its certificate already; to begin anew, delete {waiting}")
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(waiting if renew else current, key)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(holder)
        .add_extension(alternative_name(node), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = _request_of(folder, node)
    path.write_bytes(pem(request))
    return path, key_fingerprint(key.public_key())


def install(certificate: Path, authority: Path, folder: Path) -> Member:
    """Put a signed certificate beside its key, and the authority's into the folder; refuse what does not fit."""
    output, signer = read_certificate(certificate), read_certificate(authority)
    member = Member.of(output)
    if not _is_authority(signer):
        raise ConfigError(f"{authority} is not an authority's certificate")
    try:
        output.verify_directly_issued_by(signer)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(f"{certificate} was not signed by {authority}") from None
    if not member.valid(datetime.datetime.now(datetime.UTC)):
        raise ConfigError(f"{certificate} is valid from {member.start:%F} to {member.end:%F}, and not now")
    known = folder / AUTHORITY
    if known.exists() and known.read_bytes() != pem(signer):
        raise ConfigError(f"{known} is of another authority: use one folder for each")
    own = folder / member.node
    fitting = [path for path in (own / NEXT_KEY, own / KEY) if path.exists() and _fits(path, member)]
    if not fitting:
        raise ConfigError(f"no key in {own} fits {certificate}: it was made for another request")
    if fitting[0].name == NEXT_KEY:
        os.replace(fitting[0], own / KEY)
    (own / CERTIFICATE).write_bytes(pem(output))
    known.write_bytes(pem(signer))
    _request_of(folder, member.node).unlink(missing_ok=True)
    return member


def members(path: Path) -> list[Member]:
    """Whom a certificate, or every certificate in a folder, is for."""
    if path.is_file():
        return [Member.of(read_certificate(path))]
    result = [*path.glob(f"*/{CERTIFICATE}"), *path.glob("issued/*.pem")]
    if not result:
        raise ConfigError(f"{path} holds no certificate of a member")
    return sorted((Member.of(read_certificate(one)) for one in result), key=lambda member: member.node)


def pinned(text: str, add: Sequence[Member], drop: Sequence[str] = ()) -> str:
    """The text of a session file with these certificates in its table `[certificates]`; the rest stays as it is."""
    table = re.search(r"(?ms)^\[certificates\][^\n]*\n(.*?)(?=^\s*\[|\Z)", text)
    try:
        known = tomllib.loads(text).get("certificates", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the session file is not valid TOML: {error}") from None
    if table is None and known:
        raise ConfigError("write the certificates of the session file as a table [certificates]")
    if lost := sorted(set(drop) - set(known)):
        raise ConfigError(f"the session file pins no certificate for {lost[0]}")
    kept = {node: print_ for node, print_ in known.items() if node not in drop}
    kept |= {member.node: member.fingerprint for member in add}
    order = sorted(kept, key=lambda node: (node == "dealer", len(node), node))
    output = "[certificates]\n" + "".join(f'{node} = "{kept[node]}"\n' for node in order)
    if table is None:
        return f"{text.rstrip()}\n\n{output}".lstrip()
    after = text[table.end() :]
    return text[: table.start()] + output + (f"\n{after}" if after.strip() else "")


def _request_of(folder: Path, node: str) -> Path:
    """It is to be sent, so it lies next to the folder with the key, and no two members' have the same name."""
    return folder / f"request-{node}.pem"


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _fits(path: Path, member: Member) -> bool:
    return key_fingerprint(read_key(path).public_key()) == member.key


AUTHORITY_KEY, REGISTER, ISSUED = "ca-key.pem", "register.jsonl", "issued"
SHORTEST = 12
"""Characters of a passphrase."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for, after its checks."""

    node: str
    name: str
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        return key_fingerprint(self.key)


def read_request(path: Path) -> Asked:
    """A request that may be signed, or ConfigError.

    Its sender must hold the key (P-256), and it must ask for one node of a session and for nothing else.
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
    node = named_node(extensions)
    if node is None:
        raise ConfigError(f"{path}: it must name one member of a session, and nothing else")
    if more := [one for one in extensions if not isinstance(one.value, x509.SubjectAlternativeName)]:
        what = getattr(more[0].oid, "_name", more[0].oid.dotted_string)
        raise ConfigError(f"{path}: it asks for more than a member's name ({what}); nothing was signed")
    name = common_name(request.subject)
    subject(name)  # what a certificate cannot be called is refused now, before another request is signed
    return Asked(node, name, key)


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
        if len({one.node for one in asked}) < len(asked) or len({one.fingerprint for one in asked}) < len(asked):
            raise ConfigError("two requests are for the same member or of the same key; nothing was signed")
        key = read_key(self.folder / AUTHORITY_KEY, passphrase)
        for one in asked:
            self._check(one, key, renew)
        (self.folder / ISSUED).mkdir(exist_ok=True, mode=0o700)
        output = []
        for one in asked:
            certificate = certify(self.certificate, key, one.key, one.node, one.name, days)
            member = Member.of(certificate)
            self._write("signed", {**member.as_record(), "until": member.end.isoformat()})
            path = self.folder / ISSUED / f"{one.node}.pem"
            path.write_bytes(pem(certificate))
            output.append((member, path))
        return output

    def revoke(self, print_: str) -> dict[str, Any]:
        """Note that a certificate is revoked: its key is never signed again, and its node is free for another."""
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
            raise ConfigError(f"the request for {asked.node} has the authority's own key; nothing was signed")
        for line in register:
            if line["kind"] == "signed" and line["key"] == asked.fingerprint:
                word = "revoked" if line["fingerprint"] in revoked else "signed before"
                raise ConfigError(
                    f"the key of the request for {asked.node} was {word}: make a new one (`request --renew`)"
                )
        now = datetime.datetime.now(datetime.UTC)
        for line in register:
            held = line["kind"] == "signed" and line["place"] == asked.node and line["fingerprint"] not in revoked
            if held and datetime.datetime.fromisoformat(line["until"]) > now and not renew:
                raise ConfigError(
                    f"{asked.node} has a valid certificate already ({line['name']}, {line['fingerprint'][:SHOWN]}): "
                    "--renew signs another"
                )

    def _revoked(self) -> set[str]:
        return {line["fingerprint"] for line in self.register if line["kind"] == "revoked"}

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with open(self.folder / REGISTER, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "time": now, **content}) + "\n")
