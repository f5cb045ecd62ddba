"""Seeded randomness for experiments, named by use.

Every draw of the plaintext engine and of pooled evaluations comes from a stream that is named after its use (a
feature, a group, a phase), so the order of parties or features never changes a result. Masks, shares and real noise
do not come from here: the secure engine takes them from a cryptographic generator.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """A generator that depends on the seed and on the labels only."""
    digest = hashlib.sha256("/".join([str(seed), *map(str, labels)]).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint64))


def torch_seed(seed: int, *labels: str | int) -> int:
    """A seed for a local torch generator, from the same naming scheme."""
    return int(stream(seed, *labels).integers(2**31))
