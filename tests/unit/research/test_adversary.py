"""The party's adversary: reversal, soft targets, and that reversal makes activations tell less of s."""

import pytest
import torch
from torch import nn

from secure_sccvfl.research.paper.networks import Adversary, reverse

ROWS = 200
Z = torch.eye(2)[torch.arange(ROWS) % 2]
X = torch.cat([Z[:, 1:] * 2 - 1, torch.randn(ROWS, 1, generator=torch.Generator().manual_seed(0))], dim=1)


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_reversal_is_the_identity_forward_and_turns_the_gradient(weight: float) -> None:
    adversary = Adversary(2, 2, 0)
    x = X.clone().requires_grad_()
    straight = adversary.loss(x, Z)
    (forward,) = torch.autograd.grad(straight, x)
    turned = adversary.loss(reverse(x, weight), Z)
    assert torch.equal(straight, turned)
    own = torch.autograd.grad(turned, [x, *adversary.parameters()])
    assert torch.allclose(own[0], -weight * forward)
    same = torch.autograd.grad(adversary.loss(x, Z), list(adversary.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(own[1:], same, strict=True)), "the adversary itself still learns"


@pytest.mark.parametrize("reversed_too", [True, False])
def test_an_encoder_behind_the_reversal_forgets_s(reversed_too: bool) -> None:
    encoder = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        encoder.weight.copy_(torch.eye(2))
    adversary = Adversary(2, 2, 0)
    learns = torch.optim.Adam(adversary.parameters(), 0.05)
    moves = torch.optim.SGD(encoder.parameters(), 0.2)
    for _ in range(60):
        learns.zero_grad()
        moves.zero_grad()
        u = encoder(X)
        adversary.loss(reverse(u) if reversed_too else u, Z).backward()
        learns.step()
        moves.step()
    u = encoder(X).detach()
    told = (u[Z[:, 1] == 1].mean(0) - u[Z[:, 1] == 0].mean(0)).norm().item()
    assert told < 1.8 if reversed_too else told > 2.2, told  # 2 at the start


def test_soft_targets_and_bad_sizes() -> None:
    adversary = Adversary(2, 2, 0)
    half = torch.full_like(Z, 0.5)
    mixed = 0.5 * (adversary.loss(X, Z) + adversary.loss(X, 1 - Z))
    assert torch.allclose(adversary.loss(X, half), mixed)
    assert torch.equal(adversary(X), Adversary(2, 2, 0)(X))
    assert not torch.equal(adversary(X), Adversary(2, 2, 1)(X)), "the seed decides"
    with pytest.raises(ValueError, match="at least two groups"):
        Adversary(0, 2, 0)
