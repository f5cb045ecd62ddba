"""A small certificate authority for one consortium, and what a process needs to prove its rank.

Each process gets a certificate with one subject alternative name: its place in the session (`urn:sccvfl:party:2`,
`urn:sccvfl:dealer`). The authority's private key lives in memory while the certificates are made and is never
written. So nobody can add a member later: new members mean a new set.
"""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocols.config import ConfigError, node_folder

_PREFIX = "urn:sccvfl:"


@dataclass(frozen=True)
class Credentials:
    """Where one process finds the authority's certificate, its own, and its own key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, node: str) -> Credentials:
        """The files of `node` ('party-0', 'dealer') in a folder made by `make_certificates`."""
        found = cls(folder / "ca.pem", folder / node / "cert.pem", folder / node / "key.pem")
        for path in (found.authority, found.certificate, found.key):
            if not path.is_file():
                raise ConfigError(f"no certificate file {path}; make a set with launch/certs.py")
        return found

    def context(self, *, server: bool) -> ssl.SSLContext:
        """TLS 1.3 only; both sides must show a certificate of our authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # identity is the rank in the certificate, not a host name
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            context.num_tickets = 0
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"cannot use the certificate {self.certificate}: {error}; make a new set with launch/certs.py"
            ) from None
        return context


def certified_node(certificate: dict[str, Any], parties: int) -> int | None:
    """The place that a verified peer certificate names, or None."""
    names = certificate.get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith(_PREFIX):
        return None
    role = uris[0].removeprefix(_PREFIX)
    if role == "dealer":
        return parties
    kind, _, rank = role.partition(":")
    return int(rank) if kind == "party" and rank.isdigit() and int(rank) < parties else None


def make_certificates(folder: Path, parties: int, days: int = 365) -> list[Path]:
    """Write ca.pem and one folder per party and for the dealer; returns those folders."""
    if parties < 2:
        raise ConfigError(f"a session needs at least 2 parties, got {parties}")
    if (folder / "ca.pem").exists():
        raise ConfigError(f"{folder} already holds a set of certificates; choose a new folder")
    if not 1 <= days <= 36_500:
        raise ConfigError(f"certificates can be valid for 1 to 36500 days, not {days}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    until = now + datetime.timedelta(days=days)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sccvfl consortium")])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made = []
    for node in range(parties + 1):
        name = node_folder(node, parties)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"sccvfl {name}")])
        role = "dealer" if node == parties else f"party:{node}"
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(subject, authority_name, key.public_key(), now, until)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(_PREFIX + role)]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .sign(authority_key, hashes.SHA256())
        )
        place = folder / name
        place.mkdir(mode=0o700)
        (place / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        handle = os.open(place / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        made.append(place)
    return made


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
