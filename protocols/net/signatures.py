"""What a member of a consortium signs with the key of its certificate, and how others check it.

A signature covers its purpose ("plan", "heads"), so that one made for one thing is worth nothing for another. It is
ECDSA with SHA-256, over the purpose, a zero byte and the message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protocols.config import ConfigError
from protocols.net.certificates import Credentials, certified_node, read_key

_CONTEXT = b"sccvfl signature 1\0"


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (PEM), in hexadecimal digits: what a session file pins."""
    return hashlib.sha256(_read(certificate).public_bytes(serialization.Encoding.DER)).hexdigest()


def sign(credentials: Credentials, purpose: str, message: bytes) -> str:
    """This member's signature, in base64."""
    key = read_key(credentials.key)
    return base64.b64encode(key.sign(_covered(purpose, message), ec.ECDSA(hashes.SHA256()))).decode()


def is_signed(certificate: bytes, purpose: str, message: bytes, signature: str) -> bool:
    """Whether the holder of a certificate (PEM) signed this message for this purpose."""
    key = _read(certificate).public_key()
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
        _read(certificate).verify_directly_issued_by(_read(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def place_in(certificate: bytes, parties: int) -> int | None:
    """The place in a session that a certificate (PEM) names, or None."""
    try:
        names = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return certified_node({"subjectAltName": [("URI", uri) for uri in uris]}, parties)


def _read(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise ConfigError("this is not a certificate in PEM form") from None


def _covered(purpose: str, message: bytes) -> bytes:
    return _CONTEXT + purpose.encode() + b"\0" + message
