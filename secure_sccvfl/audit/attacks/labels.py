"""Label inference from gradients that a feature party gets back in `split` mode.

A residual is negative exactly where the label is 1. Every gradient is a residual times something that the party
knows or can find. Sealed runs return no gradient, so there is nothing to attack.
"""

from __future__ import annotations

import numpy as np

from secure_sccvfl.audit.attacks.view import Gradients, Rate


def rate_of_residuals(name: str, residual: np.ndarray, label: np.ndarray) -> Rate:
    """Success of the better sign convention, beside the majority rate; the party can tell which sign is which."""
    guess = residual < 0
    hits = int(max((guess == label).sum(), (guess != label).sum()))
    chance = float(max(label.mean(), 1 - label.mean()))
    return Rate.of_counts(name, "feature party", hits, len(label), chance)


def from_example_gradients(gradients: np.ndarray, label: np.ndarray) -> Rate:
    """Per-record activation gradients (n x d): multiples of one direction whose sign is the label."""
    _, _, directions = np.linalg.svd(gradients, full_matrices=False)
    return rate_of_residuals("example", gradients @ directions[0], label)


def from_batch_gradient(name: str, jacobian: np.ndarray, total: np.ndarray, label: np.ndarray) -> Rate:
    """From one gradient of the party's parameters, summed over a batch.

    The sum is linear in the residuals, and with at least as many parameters as records it can be solved.
    """
    solved = np.linalg.lstsq(jacobian.T, total, rcond=1e-6)[0]
    return rate_of_residuals(name, solved, label)


def label_inference(seen: Gradients, seed: int) -> list[Rate]:
    """From the gradients of single records, then from every sum. Nothing is random, so the seed has no effect."""
    sums = [from_batch_gradient(name, seen.jacobian, total, seen.label) for name, total in seen.sums.items()]
    return [from_example_gradients(seen.example, seen.label), *sums]


def opened_gradients(seen: Gradients, seed: int) -> list[Rate]:
    """Positive control: the gradients of single records, opened without noise."""
    return [from_example_gradients(seen.example, seen.label)]
