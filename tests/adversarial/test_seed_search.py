"""Masks of stock CrypTen can be found by trying seeds; the same search finds nothing on ours."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from secure_sccvfl.protocols.dealing.randomness import KeyAgreement, Stream, fresh_key
from tests.support.sessions import LONG

# Stock CrypTen seeds torch's generator with 64 bits, of which it uses 32. The window below stands
# for a part of those 2^32; the whole takes hours on a laptop, and can be split over machines.
WINDOW = 1 << 14

SEARCH = """
import json, os, sys
import torch
from secure_sccvfl.protocols.session.runtime import stock_crypten

crypten = stock_crypten()
window = int(sys.argv[1])
secret_low = int.from_bytes(os.urandom(4), "big")
seed = int.from_bytes(os.urandom(8), "big") - 2**63
seed = (seed & ~0xFFFFFFFF) | secret_low              # 64 random bits, as CrypTen draws them
generator = torch.Generator()
generator.manual_seed(seed)
mask = crypten.common.rng.generate_random_ring_element((8,), generator=generator)
opened = torch.arange(8) - mask                        # a masked opening of known values

start = secret_low - int.from_bytes(os.urandom(4), "big") % window
found = []
for guess in range(start, start + window):
    attempt = torch.Generator()
    attempt.manual_seed(guess & 0xFFFFFFFF)
    words = crypten.common.rng.generate_random_ring_element((8,), generator=attempt)
    if torch.equal(opened + words, torch.arange(8)):
        found.append(guess & 0xFFFFFFFF)
print(json.dumps({"found": found == [secret_low & 0xFFFFFFFF]}))
"""


def test_a_mask_of_stock_crypten_is_found(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(SEARCH)
    ran = subprocess.run(
        [sys.executable, str(script), str(WINDOW)], capture_output=True, text=True, timeout=LONG, check=True
    )
    assert json.loads(ran.stdout.splitlines()[-1])["found"]


def search(mask: np.ndarray, near: int) -> bool:
    """The same search, with the same help: a window around the true low 32 bits.

    An attacker who knows our code tries keys of 32 bits too, not only seeds of torch's generator.
    """
    opened = np.arange(8) - mask
    for guess in range(near - WINDOW // 2, near + WINDOW // 2):
        low = guess & 0xFFFFFFFF
        generator = torch.Generator()
        generator.manual_seed(low)
        words = torch.randint(-(2**63), 2**63 - 1, (8,), generator=generator, dtype=torch.long).numpy()
        ours = Stream(low.to_bytes(32, "big"), "label").draw(0).elements((8,))
        if (opened + words == np.arange(8)).all() or (opened + ours == np.arange(8)).all():
            return True
    return False


def test_the_same_search_finds_nothing_on_our_stream() -> None:
    key = fresh_key()
    assert not search(Stream(key, "label").draw(0).elements((8,)), int.from_bytes(key[-4:], "big"))


def test_the_search_would_find_a_key_of_32_bits() -> None:
    key = bytes(28) + fresh_key()[:4]
    assert search(Stream(key, "label").draw(0).elements((8,)), int.from_bytes(key[-4:], "big"))


@pytest.mark.chance(1e-11)
def test_every_byte_of_every_key_varies() -> None:
    """Keys that a session really uses: of each pair, and of a party alone.

    Forty bytes with at most 20 values: at most (256 over 20) (20/256)^40 = 2e-14, at 64 places.
    """
    agreed: list[bytes] = []
    for _ in range(40):
        one, other = KeyAgreement(), KeyAgreement()
        agreed.append(one.agree(other.public, b"session"))
    for keys in (agreed, [fresh_key() for _ in range(40)]):
        assert all(len(key) == 32 for key in keys)
        assert all(len({key[index] for key in keys}) > 20 for index in range(32))
