"""Starts one process of a session: a party's `Session`, or the dealer.

The dealer needs neither torch nor CrypTen, so those are imported where a party needs them.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.dealer import Dealer
from secure_sccvfl.protocols.dealing.party import agree_on_keys
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import reason_for_peers, waited_for
from secure_sccvfl.protocols.net.certificates import Credentials
from secure_sccvfl.protocols.net.link import Activity
from secure_sccvfl.protocols.net.mesh import Mesh
from secure_sccvfl.protocols.net.rendezvous import Rendezvous
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.records.key_mark import KeyMark
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.records.transcript import Recording, Transcript

if TYPE_CHECKING:
    from secure_sccvfl.protocols.session.runtime import Session


def connect(
    config: SessionConfig,
    node: int,
    credentials: Credentials | None,
    listener: socket.socket | None = None,
    activity: Activity | None = None,
) -> Transport:
    """Connect to all other processes of the session over mutual TLS."""
    if not 0 <= node <= config.dealer:
        raise ConfigError(f"rank must be from 0 to {config.dealer - 1}, not {node}")
    if config.transport != "tls":
        raise ConfigError(f"the transport {config.transport!r} was removed; set transport to tls")
    if credentials is None:
        raise ConfigError("a session needs certificates; see `sccvfl certs --help`")
    transport = Mesh(config, node, Rendezvous(config, node, credentials, listener, activity).run())
    if activity is not None:
        activity.running(transport.meter)
    return transport


def open_session(
    config: SessionConfig,
    rank: int,
    credentials: Credentials | None,
    plan: ReleasePlan,
    log: Path | None = None,
    listener: socket.socket | None = None,
    transcript: Path | None = None,
    activity: Activity | None = None,
    mac_key: MacKey | None = None,
    mark: KeyMark | None = None,
) -> Session:
    """A party's session, connected and ready to enter. `transcript`: where to write everything that it sees.

    `activity`: for people who watch its links. mac_key, mark: as for `Session`.
    """
    from secure_sccvfl.protocols.session.runtime import Session

    if log is not None and log.exists():
        raise ConfigError(f"{log} already exists: choose a new folder for this run")
    kept = Transcript(transcript) if transcript is not None else None
    transport = connect(config, rank, credentials, listener, activity)
    view = transport if kept is None else Recording(transport, kept)
    session = Session(view, config, plan, log, kept, mac_key, mark)
    if activity is not None:
        session.activity = activity
    return session


def refuse(
    config: SessionConfig,
    node: int,
    credentials: Credentials | None,
    reason: str,
    listener: socket.socket | None = None,
    activity: Activity | None = None,
) -> list[str]:
    """Connect to the others only to report why this process does not take part; return the names of those reached."""
    if credentials is None:
        return []
    return Rendezvous(config, node, credentials, listener, activity).refuse(reason)


def serve_as_dealer(
    config: SessionConfig,
    credentials: Credentials | None,
    transcript: Path | None = None,
    activity: Activity | None = None,
) -> int:
    """Serve one session to its end; returns how many tuples were made."""
    kept = Transcript(transcript) if transcript is not None else None
    transport = connect(config, config.dealer, credentials, None, activity)
    if kept is not None:
        transport = Recording(transport, kept)
    try:
        keys = agree_on_keys(transport, config)
        # Parties may work locally for long; meanwhile the dealer's sends wait for them.
        usual, transport.deadline = transport.deadline, config.idle
        dealer = Dealer(transport, keys, config.idle, config.active)
        dealer.serve()
        transport.deadline = usual
        transport.finish()
    except BaseException as error:
        transport.abort(reason_for_peers(error), waited_for(error))
        raise
    return dealer.made
