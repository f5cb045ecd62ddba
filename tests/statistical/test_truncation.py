"""Ten million products of values up to 30000: none off by more than two units in the last place."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.session.runtime import Session, share_of
from tests.support.sessions import LONG, results, run_session

PRODUCTS = 10_000_000
CHUNK = 500_000


@pytest.mark.parametrize("parties", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_no_product_is_garbage(parties: int) -> None:
    """Ring elements are multiplied, so what each product should be is known exactly."""

    def job(session: Session) -> int:
        rng = np.random.default_rng(parties)
        worst = 0
        for _ in session.repeat(PRODUCTS // CHUNK):
            x, y = (rng.integers(-30_000 * 65536, 30_000 * 65536, size=CHUNK) for _ in range(2))
            values = [session.wrap(_share(session, words), 16) for words in (x, y)]
            product = session.wrap(share_of(values[0] * values[1]), 0)
            opened = session.open(product, results(parties)[1])
            if session.rank == 0 and opened is not None:
                total = opened.numpy()
                exact = x.astype(np.float64) * y / 65536  # below 2^62: exact to 2^-8 of a unit
                worst = max(worst, int(np.abs(total - np.rint(exact)).max()))
        return worst

    assert run_session(job, parties)[0] <= 2


def _share(session: Session, words: np.ndarray) -> Any:
    share = session.party.zero_share(words.shape)
    return share + words if session.rank == 0 else share


STOCK = """
import json, multiprocessing, os, sys, tempfile

def party(rank, rendezvous, pipe):
    os.environ.update(WORLD_SIZE="3", RANK=str(rank), RENDEZVOUS="file://" + rendezvous,
                      DISTRIBUTED_BACKEND="gloo", GLOO_SOCKET_IFNAME="lo")
    import torch
    from secure_sccvfl.protocols.session.runtime import stock_crypten
    torch.set_num_threads(1)
    crypten = stock_crypten()
    crypten.init()
    torch.manual_seed(rank)
    x = crypten.cryptensor(torch.full((500_000,), 30000.0), src=0)
    off = 0
    for _ in range(8):
        result = (x * x).get_plain_text()
        off += int(((result - 9e8).abs() > 1e4).sum())
    if rank == 0:
        pipe.send(off)
    crypten.uninit()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        parties = [context.Process(target=party, args=(rank, folder + "/meet", theirs)) for rank in range(3)]
        for process in parties:
            process.start()
        for process in parties:
            process.join()
    if any(process.exitcode for process in parties):
        sys.exit(f"exit codes {[process.exitcode for process in parties]}")
    print(json.dumps({"off": mine.recv()}))
"""


def test_stock_crypten_does_give_garbage(tmp_path: Any) -> None:
    """Four million products at 30000 with three parties: one in five is far off, 30000^2 2^32 of 2^64."""
    script = tmp_path / "stock.py"
    script.write_text(STOCK)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LONG, check=True)
    assert json.loads(ran.stdout.splitlines()[-1])["off"] > 0
