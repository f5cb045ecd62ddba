"""Another way to write a place (party:00, other digits): it must not pass as that place beside its real holder."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocols.config import ConfigError
from protocols.net.certificates import certified_node
from protocols.net.enrolment import read_request

PREFIX = "urn:sccvfl:"
OTHERWISE = ["party:00", "party:0 ", " party:0", "party:+0", "party:-0", "party:0x0", "party-0", "Dealer", "dealer:"]
DIGITS = ["party:\N{ARABIC-INDIC DIGIT ZERO}", "party:\N{SUPERSCRIPT TWO}", "party:\N{FULLWIDTH DIGIT ONE}"]


def request(path: Path, role: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "eve")])
    place = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(PREFIX + role)])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(place, False)
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize("role", OTHERWISE)
def test_an_authority_does_not_sign_it(tmp_path: Path, role: str) -> None:
    with pytest.raises(ConfigError):
        read_request(request(tmp_path / "request.pem", role))


@pytest.mark.parametrize(("role", "place"), [("party:0", "party-0"), ("party:2", "party-2"), ("dealer", "dealer")])
def test_places_as_they_are_written_pass(tmp_path: Path, role: str, place: str) -> None:
    assert read_request(request(tmp_path / "request.pem", role)).place == place


@pytest.mark.parametrize("role", [*OTHERWISE, *DIGITS, "party:3", "party:"])
def test_a_certificate_that_says_so_has_no_place(role: str) -> None:
    assert certified_node({"subjectAltName": [("URI", PREFIX + role)]}, 3) is None


def test_a_certificate_has_the_place_that_it_names() -> None:
    roles = ["party:0", "party:1", "party:2", "dealer"]
    assert [certified_node({"subjectAltName": [("URI", PREFIX + role)]}, 3) for role in roles] == [0, 1, 2, 3]
