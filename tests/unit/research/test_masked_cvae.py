"""One party's masked generator: the terms of Eq. lgen, what an edit may touch, and its state as arrays."""

import numpy as np
import pytest
import torch

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.research.paper.generators import GeneratorTerms, MaskedCvae
from secure_sccvfl.research.paper.networks import Adversary, restore_training, training_state

ROWS, CONTEXT = 120, 3
LAYOUT = Layout.of(
    [
        Feature("m", "category", categories=("a", "b", "c")),
        Feature("n", "number", 0, 1),
        Feature("p", "category", categories=("u", "v")),
        Feature("k", "number", 0, 1, missing=True),
    ]
)
M, N, P = LAYOUT.columns(("m", "k")), LAYOUT.columns(("n",)), LAYOUT.columns(("p",))


def records(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mediators and the proxy follow s; n does not."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, ROWS)
    like_s = np.where(rng.random(ROWS) < 0.85, s, 1 - s)
    cells = np.column_stack([like_s + rng.integers(0, 2, ROWS), rng.random(ROWS), like_s, 0.3 + 0.4 * s])
    return LAYOUT.encode(cells), s


INPUTS, S = records()
X = torch.tensor(INPUTS, dtype=torch.float32)
Z_S, Z_T = torch.eye(2)[S], torch.eye(2)[1 - S]
C = torch.randn(ROWS, CONTEXT, generator=torch.Generator().manual_seed(0))


def generator(**changes: object) -> MaskedCvae:
    settings = {"edited": ("m", "k"), "proxies": ("p",), "groups": 2, "seed": 1, "context": CONTEXT, **changes}
    return MaskedCvae(LAYOUT, **settings)


def draws(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def guard(model: MaskedCvae) -> Adversary:
    return Adversary(len(model.guarded), 2, 3)


def moved(model: MaskedCvae, term: torch.Tensor) -> bool:
    """Whether a term has a gradient in the generator's parameters."""
    grads = torch.autograd.grad(term, list(model.parameters()), allow_unused=True) if term.requires_grad else []
    return any(g is not None and bool(g.abs().sum() > 0) for g in grads)


@pytest.mark.parametrize("scale", [0.2, 1.0])
@pytest.mark.parametrize("reading", ["decoded", "contrast"])
def test_only_mediators_change_and_everything_else_is_copied_bit_by_bit(scale: float, reading: str) -> None:
    model = generator(reading=reading)
    edited = model.edited_copy(INPUTS, Z_S, Z_T, C, scale)
    assert (edited[:, [*N, *P]] == INPUTS[:, [*N, *P]]).all()
    assert (edited[:, M] != INPUTS[:, M]).any(axis=1).all()
    assert edited.min() >= 0 and edited.max() <= 1
    tensor = model.edit(X, Z_S, Z_T, C, scale)
    assert torch.equal(tensor[:, [*N, *P]], X[:, [*N, *P]])
    assert np.allclose(tensor.detach().numpy(), edited, atol=1e-6)


def test_the_scale_is_a_share_of_the_whole_edit() -> None:
    model = generator()
    whole, fifth = (model.edit(X, Z_S, Z_T, C, scale) - X for scale in (1.0, 0.2))
    assert torch.allclose(fifth, 0.2 * whole, atol=1e-6)
    decoded = (X + whole)[:, LAYOUT.columns(("m",))]
    assert torch.allclose(decoded.sum(dim=1), torch.ones(ROWS), atol=1e-5), "scale 1 is what the decoder says"


def test_each_term_is_zero_or_not_where_it_must_be() -> None:
    model = generator()
    found = model.terms(X, Z_S, Z_T, draws(), C, guard(model))
    assert found.identity.item() == 0 and found.cycle.item() == 0
    assert found.likelihood.item() > 0 and found.mmd.item() > 0 and found.leak.item() > 0
    assert moved(model, found.likelihood) and moved(model, found.mmd)
    assert model.terms(X, Z_S, Z_T, draws(), C).leak.item() == 0
    cycle = model.terms(X, Z_S, Z_T, draws(), C, cycle=True).cycle
    assert cycle.item() > 0 and moved(model, cycle)


def test_identity_is_seen_when_an_edit_breaks_it() -> None:
    class Broken(MaskedCvae):
        def edit(self, x: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
            return super().edit(x, *rest, **named) + 0.1

    model = Broken(LAYOUT, ("m", "k"), ("p",), 2, 1)
    found = model.terms(X, Z_S, Z_T, draws()).identity.item()
    assert found == pytest.approx(0.01 * len(N), rel=1e-4)


def test_the_leak_has_a_gradient_only_where_proxies_are_edited() -> None:
    passing, editing = generator(), generator(edited=("m", "k", "p"))
    assert len(passing.guarded) == len(editing.guarded) == len(N) + len(P)
    assert not moved(passing, passing.terms(X, Z_S, Z_T, draws(), C, guard(passing)).leak)
    assert moved(editing, editing.terms(X, Z_S, Z_T, draws(), C, guard(editing)).leak)


def test_the_leak_is_large_where_the_adversary_recovers_s() -> None:
    adversary = Adversary(len(P), 2, 3)
    optimiser = torch.optim.Adam(adversary.parameters(), 0.02)
    before = adversary.recovery(X[:, P], Z_S).item()
    for _ in range(100):
        optimiser.zero_grad()
        adversary.loss(X[:, P], Z_S).backward()
        optimiser.step()
    assert adversary.recovery(X[:, P], Z_S).item() > before + 0.3
    assert adversary.recovery(X[:, P], Z_T).item() < adversary.recovery(X[:, P], Z_S).item()


def test_training_on_the_terms_moves_mediators_to_the_target_group() -> None:
    model, random = generator(), draws()
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    weights = GeneratorTerms(gamma=10.0)
    gap = []
    for _ in range(150):
        optimiser.zero_grad()
        found = model.terms(X, Z_S, Z_T, random, C)
        weights.total(found).backward()
        optimiser.step()
        gap.append(found.mmd.item())
    assert np.mean(gap[-10:]) < 0.3 * np.mean(gap[:10])
    edited = model.edited_copy(INPUTS, Z_S, Z_T, C, 1.0)
    at = LAYOUT.columns(("k",))[0]
    assert edited[S == 0, at].mean() > INPUTS[S == 0, at].mean() + 0.2
    assert edited[S == 1, at].mean() < INPUTS[S == 1, at].mean() - 0.2


def test_state_goes_through_arrays() -> None:
    def step(model: MaskedCvae, optimiser: torch.optim.Optimizer, seed: int) -> None:
        optimiser.zero_grad()
        GeneratorTerms().total(model.terms(X, Z_S, Z_T, draws(seed), C)).backward()
        optimiser.step()

    first = generator()
    optimiser = torch.optim.Adam(first.parameters(), 0.01)
    step(first, optimiser, 1)
    kept = training_state(first, optimiser)
    assert all(isinstance(v, np.ndarray) for v in kept.values())
    second = generator(seed=99)
    other = torch.optim.Adam(second.parameters(), 0.01)
    restore_training(second, other, kept)
    step(first, optimiser, 2)
    step(second, other, 2)
    assert torch.equal(first.edit(X, Z_S, Z_T, C), second.edit(X, Z_S, Z_T, C))
