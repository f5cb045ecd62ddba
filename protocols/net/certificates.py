"""X.509 certificates of a consortium, signatures with their keys, and checks of validity periods.

A certificate has one subject alternative name: a node of the session (`urn:sccvfl:party:2`, `urn:sccvfl:dealer`). On
several hosts each member makes its own key and an authority signs it (protocols/net/enrolment.py).
`make_certificates` makes a whole set on one machine, keys included; its authority's key lives in memory alone, so
nobody can be added later.

A signature (ECDSA with SHA-256) covers its purpose ("plan", "heads"), a zero byte and the message, so a signature
made for one purpose is invalid for another. OpenSSL reports only that a certificate is not valid now; messages here
also show the validity period and the local clock, because most often a wrong clock is the reason.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocols.config import ConfigError, node_folder

_PREFIX = "urn:sccvfl:"
_NODE = re.compile(r"dealer|party-(?:0|[1-9][0-9]{0,3})")
AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
"""Files of a member: the authority's certificate in its folder; its own certificate and key in that of its node."""
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Credentials:
    """Where one process finds the authority's certificate, its own, and its own key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, node: str) -> Credentials:
        """The files of `node` ('party-0', 'dealer') in a folder of certificates."""
        result = cls(folder / AUTHORITY, folder / node / CERTIFICATE, folder / node / KEY)
        for path in (result.authority, result.certificate, result.key):
            if not path.is_file():
                raise ConfigError(f"no certificate file {path}; `sccvfl certs --help` tells how to get one")
        return result

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
                f"cannot use the certificate {self.certificate}: {error}; make a new set, or ask for a new one"
            ) from None
        return context


def certified_node(certificate: dict[str, Any], parties: int) -> int | None:
    """The node that a verified peer certificate names, or None."""
    names = certificate.get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith(_PREFIX):
        return None
    nodes = [*(f"party:{rank}" for rank in range(parties)), "dealer"]
    role = uris[0].removeprefix(_PREFIX)
    return nodes.index(role) if role in nodes else None


def check_node(node: str) -> str:
    """A node as folders and messages name it, or ConfigError."""
    if not _NODE.fullmatch(node):
        raise ConfigError(f"a member is party-0, party-1, ... or dealer, not {node!r}")
    return node


def alternative_name(node: str) -> x509.SubjectAlternativeName:
    """The one name of a certificate: its node."""
    role = check_node(node).replace("-", ":")
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(_PREFIX + role)])


def named_node(extensions: x509.Extensions) -> str | None:
    """The node that a certificate or a request names, or None if it names none, several, or something else."""
    try:
        names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return None
    if len(names) != 1 or not isinstance(names[0], x509.UniformResourceIdentifier):
        return None
    node = names[0].value.removeprefix(_PREFIX).replace(":", "-")
    fits = _NODE.fullmatch(node) and alternative_name(node) == x509.SubjectAlternativeName(names)
    return node if fits else None


def subject(name: str) -> x509.Name:
    """What a certificate calls its holder."""
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise ConfigError(f"a name has 1 to 64 printable characters, not {name[:80]!r}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def make_certificates(folder: Path, parties: int, days: int = 365) -> list[Path]:
    """Write ca.pem and one folder per party and for the dealer; returns those folders."""
    if parties < 2:
        raise ConfigError(f"a session needs at least 2 parties, got {parties}")
    if (folder / AUTHORITY).exists():
        raise ConfigError(f"{folder} already holds a set of certificates; choose a new folder")
    check_days(days)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = self_signed("sccvfl consortium", authority_key, days)
    (folder / AUTHORITY).write_bytes(pem(authority))
    output = []
    for node in range(parties + 1):
        name, key = node_folder(node, parties), ec.generate_private_key(ec.SECP256R1())
        certificate = certify(authority, authority_key, key.public_key(), name, f"sccvfl {name}", days)
        path = folder / name
        path.mkdir(mode=0o700)
        (path / CERTIFICATE).write_bytes(pem(certificate))
        write_key(path / KEY, key)
        output.append(path)
    return output


def self_signed(name: str, key: Key, days: int) -> x509.Certificate:
    """An authority's own certificate: it may sign those of members, and no further authority."""
    return (
        _builder(subject(name), subject(name), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def certify(
    authority: x509.Certificate,
    authority_key: Key,
    key: ec.EllipticCurvePublicKey,
    node: str,
    name: str,
    days: int,
) -> x509.Certificate:
    """A member's certificate: for this key and node, to speak TLS and to sign."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(subject(name), authority.subject, key, days)
        .add_extension(alternative_name(node), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(identity, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def check_days(days: int) -> None:
    if not 1 <= days <= 36_500:
        raise ConfigError(f"certificates can be valid for 1 to 36500 days, not {days}")


def pem(made: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def write_key(path: Path, key: Key, passphrase: bytes | None = None) -> None:
    """A private key in a new file that its owner alone can read, from the first byte on."""
    hidden = serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())


def read_key(path: Path, passphrase: bytes | None = None) -> Key:
    """The private key in a file. No message shows what the file holds."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), passphrase)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} is not a private key, or the passphrase is wrong") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not an elliptic-curve key")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a PEM file."""
    try:
        return _loaded(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the certificate {path}: {error.strerror}") from None


def _builder(
    holder: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    check_days(days)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(holder)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
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


_CONTEXT = b"sccvfl signature 1\0"


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (PEM), in hexadecimal digits: what a session file pins."""
    return hashlib.sha256(_loaded(certificate).public_bytes(serialization.Encoding.DER)).hexdigest()


def sign(credentials: Credentials, purpose: str, message: bytes) -> str:
    """This member's signature, in base64."""
    key = read_key(credentials.key)
    return base64.b64encode(key.sign(_covered(purpose, message), ec.ECDSA(hashes.SHA256()))).decode()


def is_signed(certificate: bytes, purpose: str, message: bytes, signature: str) -> bool:
    """Whether the holder of a certificate (PEM) signed this message for this purpose."""
    key = _loaded(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(base64.b64decode(signature, validate=True), _covered(purpose, message), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def is_issued(certificate: bytes, authority: bytes) -> bool:
    """Whether an authority (PEM) issued a certificate (PEM). Dates do not matter: a signature outlives them."""
    try:
        _loaded(certificate).verify_directly_issued_by(_loaded(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def node_in(certificate: bytes, parties: int) -> int | None:
    """The node in a session that a certificate (PEM) names, or None."""
    try:
        names = _loaded(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return certified_node({"subjectAltName": [("URI", uri) for uri in uris]}, parties)


def _loaded(certificate: bytes, what: str = "this") -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise ConfigError(f"{what} is not a certificate in PEM form") from None


def _covered(purpose: str, message: bytes) -> bytes:
    return _CONTEXT + purpose.encode() + b"\0" + message


_NOT_YET_VALID, _EXPIRED = 9, 10  # error codes of OpenSSL


def check_own_clock(credentials: Credentials) -> None:
    """Raise unless this process's certificate and its authority's are valid by the clock of this host."""
    for path in (credentials.certificate, credentials.authority):
        certificate = read_certificate(path)
        if not certificate.not_valid_before_utc <= _now() <= certificate.not_valid_after_utc:
            raise ConfigError(
                f"the clock of this host says {_formatted(_now())}, but {path} is {_period(certificate)}: "
                "set the clock, or get a new certificate"
            )


def clock_words(error: Exception) -> str:
    """What to add to the reason why a peer's certificate was not accepted, if that was about time."""
    timely = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (_NOT_YET_VALID, _EXPIRED)
    return f"; the clock here says {_formatted(_now())}: compare the clocks of both hosts" if timely else ""


def own_period(credentials: Credentials) -> str:
    """When this process's certificate is valid, and the clock, in words."""
    period = _period(read_certificate(credentials.certificate))
    return f"{period}, and the clock here says {_formatted(_now())}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _period(certificate: x509.Certificate) -> str:
    return (
        f"valid from {_formatted(certificate.not_valid_before_utc)} to {_formatted(certificate.not_valid_after_utc)}"
    )


def _formatted(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
