"""Each host makes its own key; the authority signs members of a session and nothing else; signatures and names."""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.net.certificates import (
    AUTHORITY_KEY,
    SPOKEN_BITS,
    Authority,
    Credentials,
    Key,
    Member,
    alternative_name,
    certified_node,
    fingerprint,
    install,
    is_signed,
    make_certificates,
    make_request,
    members,
    pem,
    pinned,
    read_certificate,
    read_key,
    read_request,
    sign,
    spoken,
    subject,
    write_key,
)

PREFIX = "urn:sccvfl:"
OTHERWISE = ["party:00", "party:0 ", " party:0", "party:+0", "party:-0", "party:0x0", "party-0", "Dealer", "dealer:"]
DIGITS = ["party:\N{ARABIC-INDIC DIGIT ZERO}", "party:\N{SUPERSCRIPT TWO}", "party:\N{FULLWIDTH DIGIT ONE}"]
PARTY_1 = alternative_name("party-1")


def uri(name: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority")


def host(tmp_path: Path, node: str = "party-1") -> tuple[Path, Path]:
    """A host's folder, and its request."""
    folder = tmp_path / f"host of {node}"
    return folder, make_request(folder, node, "bureau")[0]


def asked(
    path: Path,
    *names: x509.SubjectAlternativeName,
    key: Key | None = None,
    more: x509.ExtensionType | None = None,
    called: str = "bureau",
) -> Path:
    """A request that somebody else's program makes."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(called))
    for name in names:
        builder = builder.add_extension(name, critical=False)
    if more is not None:
        builder = builder.add_extension(more, critical=True)
    path.write_bytes(pem(builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())))
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_stays_at_its_host_and_its_certificate_serves_it(tmp_path: Path, authority: Authority) -> None:
    folder, request = host(tmp_path)
    ((member, issued),) = authority.sign([request])
    assert (member.node, member.name) == ("party-1", "bureau")
    assert install(issued, authority.folder / "ca.pem", folder) == member
    credentials = Credentials.of(folder, "party-1")
    assert mode(credentials.key) == mode(authority.folder / AUTHORITY_KEY) == 0o600
    credentials.context(server=True)
    credentials.context(server=False)
    assert is_signed(issued.read_bytes(), "plan", b"this", sign(credentials, "plan", b"this"))
    secret = credentials.key.read_bytes()
    crossed = [path for path in authority.folder.rglob("*") if path.is_file()]
    assert crossed and all(secret not in path.read_bytes() for path in crossed)
    assert members(folder) == members(authority.folder) == [member]
    assert member.fingerprint == fingerprint(credentials.certificate.read_bytes())


def test_what_is_signed_is_a_member_and_nothing_more(tmp_path: Path, authority: Authority) -> None:
    ((_, issued),) = authority.sign([host(tmp_path)[1]])
    certificate = read_certificate(issued)
    assert certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == PARTY_1
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert certificate.issuer == authority.certificate.subject


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        (None, None, "must name one member"),
        (x509.SubjectAlternativeName([x509.DNSName("bank.example")]), None, "must name one member"),
        (x509.SubjectAlternativeName([*PARTY_1, *alternative_name("dealer")]), None, "must name one member"),
        (x509.SubjectAlternativeName([*PARTY_1, x509.DNSName("bank.example")]), None, "must name one member"),
        *(
            (uri(name), None, "must name one member")
            for name in ("urn:other:party:1", *map(PREFIX.__add__, OTHERWISE))
        ),
        (PARTY_1, x509.BasicConstraints(ca=True, path_length=None), "more than a member's name .basicConstraints"),
        (
            PARTY_1,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
            "more than a member's name .extendedKeyUsage",
        ),
    ],
)
def test_a_request_for_anything_else_is_refused(
    tmp_path: Path,
    authority: Authority,
    name: x509.SubjectAlternativeName | None,
    more: x509.ExtensionType | None,
    message: str,
) -> None:
    path = asked(tmp_path / "odd.pem", *([] if name is None else [name]), more=more)
    with pytest.raises(ConfigError, match=message):
        authority.sign([path])
    assert authority.register == []


def test_another_curve_and_no_request_are_refused(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(ConfigError, match="P-256"):
        authority.sign([asked(tmp_path / "p384.pem", PARTY_1, key=ec.generate_private_key(ec.SECP384R1()))])
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="not a request"):
        authority.sign([tmp_path / "none.pem"])
    request = asked(tmp_path / "own.pem", PARTY_1, key=read_key(authority.folder / AUTHORITY_KEY))
    with pytest.raises(ConfigError, match="own key"):
        authority.sign([request])


def test_a_request_with_a_key_that_its_sender_does_not_hold_is_refused(tmp_path: Path) -> None:
    """Another's public key, put into a request that the sender signs with its own."""
    path = asked(tmp_path / "request.pem", PARTY_1)
    raw = x509.load_pem_x509_csr(path.read_bytes())
    der, other = bytearray(raw.public_bytes(serialization.Encoding.DER)), ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    theirs = raw.public_key()
    assert isinstance(theirs, ec.EllipticCurvePublicKey)
    at = der.find(theirs.public_bytes(*form))
    der[at : at + 65] = other.public_key().public_bytes(*form)
    path.write_bytes(pem(x509.load_der_x509_csr(bytes(der))))
    with pytest.raises(ConfigError, match="does not hold its key"):
        read_request(path)


def test_a_certificate_is_given_once_unless_it_is_renewed_with_a_new_key(
    tmp_path: Path, authority: Authority
) -> None:
    folder, request = host(tmp_path)
    ((first, issued),) = authority.sign([request])
    install(issued, authority.folder / "ca.pem", folder)
    with pytest.raises(ConfigError, match="party-1 has a valid certificate already"):
        authority.sign([asked(tmp_path / "other.pem", PARTY_1)])
    with pytest.raises(ConfigError, match="--renew makes a new key"):
        make_request(folder, "party-1", "bureau")
    before = (folder / "party-1" / "key.pem").read_bytes()
    again, _ = make_request(folder, "party-1", "bureau", renew=True)
    assert (folder / "party-1" / "key.pem").read_bytes() == before, "in use until the new one is there"
    ((second, issued),) = authority.sign([again], renew=True)
    assert second.key != first.key
    assert install(issued, authority.folder / "ca.pem", folder) == second
    assert (folder / "party-1" / "key.pem").read_bytes() != before
    assert not (folder / "party-1" / "next-key.pem").exists()
    Credentials.of(folder, "party-1").context(server=True)


def test_a_key_that_was_signed_or_revoked_is_never_signed_again(tmp_path: Path, authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    request = asked(tmp_path / "request.pem", PARTY_1, key=key)
    ((member, issued),) = authority.sign([request])
    elsewhere = asked(tmp_path / "elsewhere.pem", alternative_name("party-2"), key=key)
    with pytest.raises(ConfigError, match="signed before"):
        authority.sign([elsewhere])
    authority.revoke(member.fingerprint)
    assert not issued.exists(), "it is not handed out any more"
    for path in (request, elsewhere):
        with pytest.raises(ConfigError, match="was revoked"):
            authority.sign([path], renew=True)
    with pytest.raises(ConfigError, match="revoked already"):
        authority.revoke(member.fingerprint)
    with pytest.raises(ConfigError, match="did not sign"):
        authority.revoke("0" * 64)
    assert authority.sign([asked(tmp_path / "new.pem", PARTY_1)])[0][0].node == "party-1", "it is free for another"


def test_requests_are_signed_all_or_none(tmp_path: Path, authority: Authority) -> None:
    good = asked(tmp_path / "good.pem", PARTY_1)
    with pytest.raises(ConfigError, match="must name one member"):
        authority.sign([good, asked(tmp_path / "bad.pem")])
    with pytest.raises(ConfigError, match="same member"):
        authority.sign([good, asked(tmp_path / "twin.pem", PARTY_1)])
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank\x1b[2J")])  # it would clear a screen
    odd = x509.CertificateSigningRequestBuilder().subject_name(called)
    odd = odd.add_extension(alternative_name("party-2"), critical=False)
    (tmp_path / "odd.pem").write_bytes(pem(odd.sign(key, hashes.SHA256())))
    with pytest.raises(ConfigError, match="printable"):
        authority.sign([good, tmp_path / "odd.pem"])
    assert authority.register == []


def test_a_certificate_that_does_not_fit_is_not_installed(tmp_path: Path, authority: Authority) -> None:
    folder, request = host(tmp_path)
    other = Authority.create(tmp_path / "other")
    ((_, foreign),) = other.sign([asked(tmp_path / "foreign.pem", PARTY_1)])
    with pytest.raises(ConfigError, match="was not signed by"):
        install(foreign, authority.folder / "ca.pem", folder)
    with pytest.raises(ConfigError, match=r"no key in .* fits"):
        install(foreign, other.folder / "ca.pem", folder)
    ((_, issued),), ((_, theirs),) = authority.sign([request]), other.sign([request], renew=True)
    with pytest.raises(ConfigError, match="not an authority's certificate"):
        install(issued, issued, folder)
    install(issued, authority.folder / "ca.pem", folder)
    with pytest.raises(ConfigError, match="of another authority"):
        install(theirs, other.folder / "ca.pem", folder)


def test_the_authoritys_key_can_be_encrypted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 12"):
        Authority.create(tmp_path / "weak", b"short")
    authority = Authority.create(tmp_path / "authority", b"correct horse battery")
    assert authority.is_encrypted
    request = asked(tmp_path / "request.pem", PARTY_1)
    for wrong in (None, b"another passphrase"):
        with pytest.raises(ConfigError, match="the passphrase is wrong") as caught:
            authority.sign([request], wrong)
        assert "another" not in str(caught.value)
    assert authority.sign([request], b"correct horse battery")[0][0].node == "party-1"


def test_keys_are_not_written_over(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(ConfigError, match="already holds"):
        Authority.create(authority.folder)
    path = tmp_path / "key.pem"
    write_key(path, ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(FileExistsError):
        write_key(path, ec.generate_private_key(ec.SECP256R1()))


def member(node: str, digit: str) -> Member:
    now = datetime.datetime.now(datetime.UTC)
    return Member(node, "x", now, now, digit * 64, "")


def test_pins_are_written_into_a_session_file_and_leave_it(tmp_path: Path) -> None:
    text = '# ours\nparties = ["a:1", "b:1"]\n[options]\nseed = 1  # kept\n'
    both = [member("party-1", "b"), member("dealer", "d"), member("party-0", "a")]
    first = pinned(text, both)
    path = tmp_path / "session.toml"
    path.write_text(first)
    loaded = SessionConfig.load(path)
    assert loaded.certificates == {"party-0": "a" * 64, "party-1": "b" * 64, "dealer": "d" * 64}
    assert loaded.needs_approval and "seed = 1  # kept" in first
    second = pinned(first + '[more]\nx = "y"\n', [member("party-1", "c")])
    assert f'party-1 = "{"c" * 64}"' in second and "b" * 64 not in second and 'x = "y"' in second
    path.write_text(pinned(first, [], ["party-1"]))
    with pytest.raises(ConfigError, match="one entry for each"):
        SessionConfig.load(path)
    with pytest.raises(ConfigError, match="no certificate for party-7"):
        pinned(first, [], ["party-7"])
    with pytest.raises(ConfigError, match="as a table"):
        pinned('certificates = { dealer = "x" }\n', both)


def test_a_rank_that_is_spelled_otherwise_is_not_accepted() -> None:
    def rank(role: str) -> int | None:
        return certified_node({"subjectAltName": [("URI", PREFIX + role)]}, 3)

    assert [rank(role) for role in ("party:0", "party:1", "party:2", "dealer")] == [0, 1, 2, 3]
    assert [role for role in (*OTHERWISE, *DIGITS, "party:3", "party:") if rank(role) is not None] == []


def test_a_signature_holds_for_one_message_one_purpose_and_one_signer(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", 2, days=1)
    first, second = (Credentials.of(tmp_path / "certs", f"party-{rank}") for rank in range(2))
    certificate, other = first.certificate.read_bytes(), second.certificate.read_bytes()
    signature = sign(first, "plan", b"this")
    assert is_signed(certificate, "plan", b"this", signature)
    assert not is_signed(certificate, "plan", b"that", signature)
    assert not is_signed(certificate, "heads", b"this", signature)
    assert not is_signed(other, "plan", b"this", signature)
    assert not is_signed(certificate, "plan", b"this", "no signature")
    with pytest.raises(ConfigError, match="not a certificate"):
        fingerprint(b"nothing")


def test_what_people_read_out_is_the_begin_of_the_whole_digest() -> None:
    digest = hashlib.sha256(b"a key").hexdigest()
    said = spoken(digest)
    assert re.fullmatch(r"([A-Z2-7]{4}-){4}[A-Z2-7]{4}", said)
    assert base64.b32decode(said.replace("-", "") + "AAAA")[:12].hex() == digest[:24], "96 whole bits, and four more"
    flipped = (f"{int(digest, 16) ^ 1 << 255 - bit:064x}" for bit in range(SPOKEN_BITS))
    assert all(spoken(other) != said for other in flipped), "every one of its bits counts"


def test_a_certificate_is_revoked_by_what_is_read_out(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority")
    ((member, _),) = authority.sign([make_request(tmp_path / "certs", "party-0", "bank")[0]])
    with pytest.raises(ConfigError, match="did not sign"):
        authority.revoke(spoken("0" * 64))
    assert authority.revoke(spoken(member.fingerprint))["fingerprint"] == member.fingerprint
