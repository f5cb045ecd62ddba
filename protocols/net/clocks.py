"""When certificates are valid, and what the clock of this host says: most often a wrong clock is the reason.

OpenSSL says only that a certificate is not valid now. People need both times to see which of two clocks is wrong.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509

from protocols.config import ConfigError
from protocols.net.certificates import Credentials

_NOT_YET_VALID, _EXPIRED = 9, 10  # OpenSSL's numbers of these two findings


def check_own_clock(credentials: Credentials) -> None:
    """Raise unless this process's certificate and its authority's are valid by the clock of this host."""
    for path in (credentials.certificate, credentials.authority):
        found = _read(path)
        if found is not None and not found.not_valid_before_utc <= _now() <= found.not_valid_after_utc:
            raise ConfigError(
                f"the clock of this host says {_said(_now())}, but {path} is {_period(found)}: "
                "set the clock, or get a new certificate"
            )


def clock_words(error: Exception) -> str:
    """What to add to the reason why a peer's certificate was not accepted, if that was about time."""
    timely = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (_NOT_YET_VALID, _EXPIRED)
    return f"; the clock here says {_said(_now())}: compare the clocks of both hosts" if timely else ""


def own_period(credentials: Credentials) -> str:
    """When this process's certificate is valid, and the clock, in words."""
    found = _read(credentials.certificate)
    return f"{_period(found)}, and the clock here says {_said(_now())}" if found is not None else "not readable"


def _read(path: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:  # OpenSSL says what is wrong with it
        return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _period(certificate: x509.Certificate) -> str:
    return f"valid from {_said(certificate.not_valid_before_utc)} to {_said(certificate.not_valid_after_utc)}"


def _said(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
