"""Masks of stock CrypTen can be found by trying seeds; the same search finds nothing on ours."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from protocols.randomness import Stream, fresh_key

# Stock CrypTen seeds torch's generator with 64 bits, of which it uses 32. The window below stands
# for a part of those 2^32; the whole takes hours on a laptop, and can be split over machines.
WINDOW = 1 << 14

SEARCH = """
import json, os, sys
import torch
from protocols.runtime import stock_crypten

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
        [sys.executable, str(script), str(WINDOW)], capture_output=True, text=True, timeout=200, check=True
    )
    assert json.loads(ran.stdout.splitlines()[-1])["found"]


def test_the_same_search_finds_nothing_on_our_stream() -> None:
    import torch

    mask = Stream(fresh_key(), "dealer tuples").draw(0).words((8,))
    opened = np.arange(8) - mask
    for guess in range(WINDOW):
        generator = torch.Generator()
        generator.manual_seed(guess)
        words = torch.randint(-(2**63), 2**63 - 1, (8,), generator=generator, dtype=torch.long).numpy()
        assert not (opened + words == np.arange(8)).any()
        # An attacker who knows our code would try small keys instead of seeds.
        ours = Stream(guess.to_bytes(32, "big"), "dealer tuples").draw(0).words((8,))
        assert not (opened + ours == np.arange(8)).any()
