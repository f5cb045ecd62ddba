"""A signature holds for its message, its purpose and its signer, and for nothing else."""

from pathlib import Path

import pytest

from protocols.config import ConfigError
from protocols.net.certificates import Credentials, fingerprint, is_signed, make_certificates, sign


def test_a_signature_holds_for_one_message_one_purpose_and_one_signer(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", 2, days=1)
    first, second = (Credentials.of(tmp_path / "certs", f"party-{rank}") for rank in range(2))
    own, other = first.certificate.read_bytes(), second.certificate.read_bytes()
    made = sign(first, "plan", b"this")
    assert is_signed(own, "plan", b"this", made)
    assert not is_signed(own, "plan", b"that", made)
    assert not is_signed(own, "heads", b"this", made)
    assert not is_signed(other, "plan", b"this", made)
    assert not is_signed(own, "plan", b"this", "no signature")
    assert fingerprint(own) != fingerprint(other) and len(fingerprint(own)) == 64
    with pytest.raises(ConfigError, match="not a certificate"):
        fingerprint(b"nothing")
