"""Certificates of a consortium: keys, requests, the authority that signs them, pins in session files, signatures.

A certificate has one subject alternative name: a node of the session (`urn:sccvfl:party:2`, `urn:sccvfl:dealer`).

| step | who | holds before | sends | learns |
|---|---|---|---|---|
| `make_request` | a member | nothing | its public key, node and name, signed with the new key | nothing |
| `Authority.sign` | the authority | its own key | the certificate, public | which key belongs to which node |
| `install` | the member | its key | nothing | whether the certificate is for this key |

Keys never leave their host. What crosses is public and may travel by mail; people compare the fingerprint of the key
by voice (`spoken`), so that no request is mistaken for another's. A renewal makes a new key next to the old one,
which stays in use until the new certificate is installed. `make_certificates` makes a whole set on one machine, keys
included; its authority's key is kept in memory only, so no member can be added later.

The authority is trusted to assign each node to the right organisation when a session file is first written, and with
nothing afterwards: a session file pins the fingerprint of every certificate, so one that the authority makes for
itself later is rejected everywhere. Its register lists what it signed and what was revoked. A key that was ever
signed is never signed again.

A signature (ECDSA with SHA-256) covers its purpose ("plan", "heads"), a zero byte and the message, so a signature
made for one purpose is invalid for another. OpenSSL reports only that a certificate is not valid now; messages here
also show the validity period and the local clock, because most often a wrong clock is the reason.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import json
import os
import re
import ssl
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secure_sccvfl.protocols.config import ConfigError, node_folder

_PREFIX = "urn:sccvfl:"
_NODE = re.compile(r"dealer|party-(?:0|[1-9][0-9]{0,3})")
AUTHORITY, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
"""Files of a member: the authority's certificate in its folder; its own certificate and key in that of its node."""
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Credentials:
    """The files of one process: the authority's certificate, its own, and its own key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, node: str) -> Credentials:
        """The files of `node` ('party-0', 'dealer') in a folder of certificates."""
        result = cls(folder / AUTHORITY, folder / node / CERTIFICATE, folder / node / KEY)
        for path in (result.authority, result.certificate, result.key):
            if not path.is_file():
                raise ConfigError(f"no certificate file {path}; see `sccvfl certs --help`")
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


def pem(document: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return document.public_bytes(serialization.Encoding.PEM)


def write_key(path: Path, key: Key, passphrase: bytes | None = None) -> None:
    """A private key in a new file readable by its owner only, from the first byte on."""
    hidden = serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())


def read_key(path: Path, passphrase: bytes | None = None) -> Key:
    """The private key in a file. No message shows its content."""
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
    try:
        return _loaded(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the certificate {path}: {error.strerror}") from None


def _builder(
    holder: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    check_days(days)
    start = _now() - datetime.timedelta(minutes=5)  # clocks differ
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


def dsse_envelope(credentials: Credentials, kind: str, payload: bytes) -> dict[str, Any]:
    """A payload in a DSSE envelope, signed by this member (ECDSA, SHA-256); keyid: its certificate's fingerprint.

    What is signed begins with DSSEv1, so it is good for no other purpose of this key.
    """
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
    certificate = credentials.certificate.read_bytes()
    signature = read_key(credentials.key).sign(signed, ec.ECDSA(hashes.SHA256()))
    try:
        _loaded(certificate).public_key().verify(signature, signed, ec.ECDSA(hashes.SHA256()))  # type: ignore
    except InvalidSignature:
        raise ConfigError(f"{credentials.key} is not the key of {credentials.certificate}") from None
    one = {"keyid": fingerprint(certificate), "sig": base64.b64encode(signature).decode()}
    return {"payloadType": kind, "payload": base64.b64encode(payload).decode(), "signatures": [one]}


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
    """What to add to the reason for rejecting a peer's certificate, if it is about time."""
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


NEXT_KEY = "next-key.pem"
SHOWN = 8
"""Digits of a fingerprint in messages that name one; what people compare is `spoken`."""
SPOKEN_BITS = 100


def spoken(digest: str) -> str:
    """The first 100 bits of a digest (in hexadecimal) as five groups of four letters and digits, to compare by voice.

    Files keep and signatures cover the whole digest. The alphabet is that of base32 (A to Z, 2 to 7): no digit can be
    mistaken for a letter. To substitute another key or plan takes a second preimage, about 2^100 hashes. A collision
    of two own documents takes 2^50 and gains nothing: both keys then belong to the same member, and a session starts
    only if all parties have signed the same whole digest.

    >>> spoken("00" * 32), spoken("ff" * 32)
    ('AAAA-AAAA-AAAA-AAAA-AAAA', '7777-7777-7777-7777-7777')
    """
    text = base64.b32encode(bytes.fromhex(digest)).decode()[: SPOKEN_BITS // 5]
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


@dataclass(frozen=True)
class Member:
    """The holder that a certificate names. `key` is the fingerprint of the public key."""

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
    return "".join(str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME))


def key_fingerprint(key: object) -> str:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError("a key of a member is one of the elliptic curve P-256")
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def make_request(folder: Path, node: str, name: str, *, renew: bool = False) -> tuple[Path, str]:
    """A new key in `folder`, and a request for its certificate; returns its path and the key's fingerprint."""
    node_path = folder / check_node(node)
    holder = subject(name)
    current, waiting = node_path / KEY, node_path / NEXT_KEY
    if current.exists() and not renew:
        raise ConfigError(f"{current} already exists; --renew makes a new key next to it")
    if renew and not current.exists():
        raise ConfigError(f"there is no {current} to renew; leave --renew out")
    if waiting.exists():
        raise ConfigError(f"a renewal waits for its certificate already; to start again, delete {waiting}")
    node_path.mkdir(parents=True, exist_ok=True, mode=0o700)
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
    """Put a signed certificate next to its key, and the authority's into the folder; refuse others."""
    output, signer = read_certificate(certificate), read_certificate(authority)
    member = Member.of(output)
    if not _is_authority(signer):
        raise ConfigError(f"{authority} is not an authority's certificate")
    if not is_issued(pem(output), pem(signer)):
        raise ConfigError(f"{certificate} was not signed by {authority}")
    if not member.valid(_now()):
        raise ConfigError(f"{certificate} is valid from {member.start:%F} to {member.end:%F}, and not now")
    installed_authority = folder / AUTHORITY
    if installed_authority.exists() and installed_authority.read_bytes() != pem(signer):
        raise ConfigError(f"{installed_authority} is of another authority: use a separate folder for each")
    node_path = folder / member.node
    fitting = [path for path in (node_path / NEXT_KEY, node_path / KEY) if path.exists() and _fits(path, member)]
    if not fitting:
        raise ConfigError(f"no key in {node_path} fits {certificate}: it was made for another request")
    if fitting[0].name == NEXT_KEY:
        os.replace(fitting[0], node_path / KEY)
    (node_path / CERTIFICATE).write_bytes(pem(output))
    installed_authority.write_bytes(pem(signer))
    _request_of(folder, member.node).unlink(missing_ok=True)
    return member


def members(path: Path) -> list[Member]:
    """The holders of a certificate, or of every certificate in a folder."""
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
        pins = tomllib.loads(text).get("certificates", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the session file is not valid TOML: {error}") from None
    if table is None and pins:
        raise ConfigError("write the certificates of the session file as a table [certificates]")
    if lost := sorted(set(drop) - set(pins)):
        raise ConfigError(f"the session file pins no certificate for {lost[0]}")
    kept = {node: print_ for node, print_ in pins.items() if node not in drop}
    kept |= {member.node: member.fingerprint for member in add}
    order = sorted(kept, key=lambda node: (node == "dealer", len(node), node))
    output = "[certificates]\n" + "".join(f'{node} = "{kept[node]}"\n' for node in order)
    if table is None:
        return f"{text.rstrip()}\n\n{output}".lstrip()
    after = text[table.end() :]
    return text[: table.start()] + output + (f"\n{after}" if after.strip() else "")


def _request_of(folder: Path, node: str) -> Path:
    """The path of a request: next to the folder with the key, and different for every member."""
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
        raise ConfigError(f"{path}: its sender does not hold its key")
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
        """Note that a certificate is revoked: its key is never signed again, and its node is free for another.

        print_: its fingerprint, whole or in groups.
        """
        print_ = next((p for line in self.register if print_ == spoken(p := line["fingerprint"])), print_)
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
        now = _now()
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
        now = _now().isoformat(timespec="seconds")
        with open(self.folder / REGISTER, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "time": now, **content}) + "\n")
