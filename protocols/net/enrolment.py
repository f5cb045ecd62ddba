"""A member's own part in getting a certificate: its key is made on its host and never leaves it.

| step | who | holds before | sends | learns |
|---|---|---|---|---|
| `make_request` | a member | nothing | its public key, place and name, signed with the new key | nothing |
| `authority.sign` | the authority | its own key | the certificate, public | which key is at which place |
| `install` | the member | its key | nothing | whether the certificate is for this key |

What crosses is public; it may travel by mail. The fingerprint of the key is there to be compared by voice, so that
nobody's request is taken for another's. A renewal makes a new key beside the old one. The old one stays in use until
the new certificate is installed.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocols.config import ConfigError
from protocols.net.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    alternative_name,
    check_place,
    pem,
    place_named,
    read_certificate,
    read_key,
    subject,
    write_key,
)
from protocols.net.signatures import fingerprint

NEXT_KEY = "next-key.pem"
SHOWN = 8
"""Digits of a fingerprint in messages; people compare all of them."""


@dataclass(frozen=True)
class Member:
    """What a certificate says of its holder. `key` is the fingerprint of the public key."""

    place: str
    name: str
    start: datetime.datetime
    end: datetime.datetime
    fingerprint: str
    key: str

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Member:
        place = place_named(certificate.extensions)
        if place is None:
            raise ConfigError("this certificate names no place of a session")
        return cls(
            place,
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
        return {"place": self.place, "name": self.name, **days, "fingerprint": self.fingerprint, "key": self.key}


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


def make_request(folder: Path, place: str, name: str, *, renew: bool = False) -> tuple[Path, str]:
    """A new key in `folder`, and a request for its certificate; returns its path and the key's fingerprint."""
    own = folder / check_place(place)
    holder = subject(name)
    current, waiting = own / KEY, own / NEXT_KEY
    if current.exists() and not renew:
        raise ConfigError(f"{current} is there already; --renew makes a new key beside it")
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
        .add_extension(alternative_name(place), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = _request_of(folder, place)
    path.write_bytes(pem(request))
    return path, key_fingerprint(key.public_key())


def install(certificate: Path, authority: Path, folder: Path) -> Member:
    """Put a signed certificate beside its key, and the authority's into the folder; refuse what does not fit."""
    made, signer = read_certificate(certificate), read_certificate(authority)
    member = Member.of(made)
    if not _is_authority(signer):
        raise ConfigError(f"{authority} is no certificate of an authority")
    try:
        made.verify_directly_issued_by(signer)
    except (InvalidSignature, ValueError, TypeError):
        raise ConfigError(f"{certificate} was not signed by {authority}") from None
    if not member.valid(datetime.datetime.now(datetime.UTC)):
        raise ConfigError(f"{certificate} is valid from {member.start:%F} to {member.end:%F}, and not now")
    known = folder / AUTHORITY
    if known.exists() and known.read_bytes() != pem(signer):
        raise ConfigError(f"{known} is of another authority: use one folder for each")
    own = folder / member.place
    fitting = [path for path in (own / NEXT_KEY, own / KEY) if path.exists() and _fits(path, member)]
    if not fitting:
        raise ConfigError(f"no key in {own} fits {certificate}: it was made for another request")
    if fitting[0].name == NEXT_KEY:
        os.replace(fitting[0], own / KEY)
    (own / CERTIFICATE).write_bytes(pem(made))
    known.write_bytes(pem(signer))
    _request_of(folder, member.place).unlink(missing_ok=True)
    return member


def members(path: Path) -> list[Member]:
    """Whom a certificate, or every certificate in a folder, is for."""
    if path.is_file():
        return [Member.of(read_certificate(path))]
    found = [*path.glob(f"*/{CERTIFICATE}"), *path.glob("issued/*.pem")]
    if not found:
        raise ConfigError(f"{path} holds no certificate of a member")
    return sorted((Member.of(read_certificate(one)) for one in found), key=lambda member: member.place)


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
    kept = {place: print_ for place, print_ in known.items() if place not in drop}
    kept |= {member.place: member.fingerprint for member in add}
    order = sorted(kept, key=lambda place: (place == "dealer", len(place), place))
    made = "[certificates]\n" + "".join(f'{place} = "{kept[place]}"\n' for place in order)
    if table is None:
        return f"{text.rstrip()}\n\n{made}".lstrip()
    after = text[table.end() :]
    return text[: table.start()] + made + (f"\n{after}" if after.strip() else "")


def _request_of(folder: Path, place: str) -> Path:
    """It is to be sent, so it lies beside the folder with the key, and no two members' have the same name."""
    return folder / f"request-{place}.pem"


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _fits(path: Path, member: Member) -> bool:
    return key_fingerprint(read_key(path).public_key()) == member.key
