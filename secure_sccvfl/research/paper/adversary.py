"""The paper's adversary of one party, with gradient reversal (Eq. grl_adv), and its use on proxies (Eq. lgen).

A party runs it alone, on its own activations or columns. It needs a group for each of its records: the true one in
plaintext, a soft one (rows x groups) where a party has only the posterior of its noisy tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.research.paper.encoder import start_layers

HIDDEN = 32


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.weight * grads[0], None


def reverse(x: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """GRL: identity forward, gradient times -weight backward."""
    reversed_x: torch.Tensor = _Reverse.apply(x, weight)
    return reversed_x


class Adversary(nn.Module):
    """Guesses the group of each record; two layers. The paper gives its learning rate, not its size."""

    def __init__(self, inputs: int, groups: int, seed: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        if inputs < 1 or groups < 2:
            raise ValueError(f"an adversary needs inputs and at least two groups, got {inputs} and {groups}")
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, groups))
        start_layers(self.net, seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the groups."""
        guess: torch.Tensor = self.net(x)
        return guess

    def loss(self, x: torch.Tensor, z_s: torch.Tensor) -> torch.Tensor:
        """Cross entropy against z_s, one-hot or soft. Pass `reverse(x)` to make x tell less of s."""
        return F.cross_entropy(self(x), z_s)

    def recovery(self, x: torch.Tensor, z_s: torch.Tensor) -> torch.Tensor:
        """-log(1 - a): large where the adversary recovers z_s, the last term of Eq. lgen before its weight.

        It has a gradient in x alone: the adversary itself must not learn to fail.
        """
        held = {name: value.detach() for name, value in self.net.named_parameters()}
        guess = torch.func.functional_call(self.net, held, (x,))
        recovered = (torch.softmax(guess, dim=1) * z_s).sum(dim=1)
        return -torch.log((1 - recovered).clamp_min(1e-6)).mean()
