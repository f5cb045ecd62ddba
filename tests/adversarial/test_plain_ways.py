"""Every way from a shared value to a plain one raises, unless it is a declared release."""

import pickle
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.errors import ProtocolError, UndeclaredRelease
from secure_sccvfl.protocols.session import runtime
from secure_sccvfl.protocols.session.runtime import Session, crypten
from tests.support.sessions import results, run_session

WAYS = {
    "get_plain_text": lambda value: value.get_plain_text(),
    "get_plain_text to one": lambda value: value.get_plain_text(dst=0),
    "reveal": lambda value: value.reveal(),
    "reveal to one": lambda value: value.reveal(dst=1),
    "reveal_batch": lambda value: type(value).reveal_batch([value]),
    "print": print,
    "repr": repr,
    "str": str,
    "format": lambda value: f"{value}",
    "percent": lambda value: "%s" % (value,),  # noqa: UP031
    "pickle": pickle.dumps,
}


def shapes_of(session: Session) -> dict[str, Any]:
    tensor = session.share(np.ones(3), owner=0, shape=(3,))
    return {"MPCTensor": tensor, "ArithmeticSharedTensor": tensor._tensor}


def test_undeclared_ways_raise_on_every_party() -> None:
    tried = []

    def job(session: Session) -> None:
        for kind, value in shapes_of(session).items():
            for name, way in WAYS.items():
                if name == "reveal_batch" and "MPCTensor" in kind:
                    continue  # it has none
                before = session._transport.meter.total.sent
                with pytest.raises(UndeclaredRelease):
                    way(value)
                assert session._transport.meter.total.sent == before
                tried.append((session.rank, kind, name))

    run_session(job)
    assert len(tried) == 3 * (2 * len(WAYS) - 1)


def test_the_communicator_moves_no_share() -> None:
    def job(session: Session) -> None:
        talk = crypten.communicator.get()
        assert (talk.get_rank(), talk.get_world_size()) == (session.rank, 3)
        for name in ("all_reduce", "reduce", "gather", "broadcast", "broadcast_obj", "scatter", "send", "recv"):
            with pytest.raises(UndeclaredRelease):
                getattr(talk, name)

    run_session(job)


@pytest.mark.parametrize("provider", ["TFP", "TTP", "HE"])
def test_no_configuration_reaches_another_provider(provider: str) -> None:
    def job(session: Session) -> None:
        crypten.config.cfg.mpc.provider = provider
        with pytest.raises(ProtocolError):
            crypten.mpc.get_default_provider()
        assert not crypten.mpc.ttp_required()
        value = session.share(np.full(4, 3.0), owner=0, shape=(4,))
        plain = session.open(value * value, results(2)[1])
        assert plain is not None and np.abs(plain.numpy() - 9).max() < 1e-3
        # CrypTen's own provider, taken by hand, finds no generator to draw from.
        with pytest.raises(ProtocolError):
            crypten.mpc.provider.TrustedFirstParty().generate_additive_triple((2,), (2,), "mul")
        for start in (crypten.init, crypten.uninit, lambda: crypten.init_thread(0, 1)):
            with pytest.raises(ProtocolError, match="set-up is not used"):
                start()

    run_session(job, 2)


def test_the_session_file_cannot_name_a_provider(tmp_path: Any) -> None:
    from secure_sccvfl.protocols.config import ConfigError, SessionConfig

    path = tmp_path / "session.toml"
    path.write_text('parties = ["a:1", "b:2"]\nprovider = "TFP"\n')
    with pytest.raises(ConfigError, match="unknown setting 'provider'"):
        SessionConfig.load(path)


def test_the_replicated_protocol_is_out_of_reach() -> None:
    """CrypTen's replicated protocol leaks; selecting it changes nothing."""

    def job(session: Session) -> None:
        crypten.config.cfg.mpc.protocol = "replicated"
        value = session.share(np.full(4, 3.0), owner=0, shape=(4,))
        plain = session.open(value * value, results(3)[1])
        assert plain is not None and np.abs(plain.numpy() - 9).max() < 1e-3
        with pytest.raises((UndeclaredRelease, AttributeError)):
            crypten.mpc.primitives.replicated.mul(value._tensor, value._tensor)

    run_session(job)


def test_stock_crypten_is_refused_after_a_session() -> None:
    run_session(lambda session: None, 2)
    with pytest.raises(ProtocolError, match="separate process"):
        runtime.stock_crypten()
