"""Attacks find what is there, find nothing where there is nothing, and agree with others' code."""

import numpy as np
import pytest
import torch

from secure_sccvfl.audit.attacks.attributes import attribute_inference, strongest
from secure_sccvfl.audit.attacks.columns import feature_inference
from secure_sccvfl.audit.attacks.labels import label_inference
from secure_sccvfl.audit.attacks.perturbation import perturb, subspace_pgd, two_class
from secure_sccvfl.audit.attacks.view import RADII, Columns, Rate, View, WhiteBox
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import METHODS, prepare

GERMAN = load("german")


@pytest.fixture(scope="module")
def ready():
    return prepare(GERMAN, make_split(GERMAN, "iid", 0), 0)


def view(leak, n=800, seed=0):
    rng = np.random.default_rng(seed)
    s = (rng.random(2 * n) < 0.2).astype(int)
    values = np.column_stack([rng.normal(size=2 * n) + leak * s, rng.normal(size=2 * n)])
    return View("test", (values[:n], s[:n]), (values[n:], s[n:]))


def test_attribute_inference_finds_a_leak_and_only_a_leak():
    found = strongest(attribute_inference(view(2.0), 0))
    best = 0.8413  # the optimal balanced rate for two unit normals two apart
    assert found.low <= best <= found.high + 0.02 and found.chance == 0.5
    none = [attribute_inference(view(0.0, seed=seed), seed) for seed in range(5)]
    rates = np.array([[r.rate for r in rates] for rates in none])
    error = np.sqrt(0.25 / 160 + 0.25 / 640) / 2 / np.sqrt(5)
    assert np.abs(rates.mean(axis=0) - 0.5).max() < 4 * error
    assert {r.attack for r in none[0]} == {"mlp10", "mlp20", "mlp40", "mlp80", "logreg", "boosting"}


def test_attribute_inference_agrees_with_another_implementation():
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.neural_network import MLPClassifier

    shown = view(1.0, n=1500)
    ours = {r.attack: r.rate for r in attribute_inference(shown, 0)}["mlp40"]
    (x, s), (test, truth) = shown.known, shown.unknown
    rows = np.concatenate([np.flatnonzero(s == 1), np.flatnonzero(s == 0)[: (s == 1).sum()]])
    net = MLPClassifier((64,), max_iter=400, random_state=0).fit(x[rows], s[rows])
    assert abs(ours - balanced_accuracy_score(truth, net.predict(test))) < 0.03


def columns_view(shows, n=2000):
    """Another party's column of three categories: the own column tells some of it, the view all or nothing."""
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, 2 * n)
    own = (target == 0) * 1.0 + rng.normal(size=2 * n)
    shown = np.eye(3)[target] if shows else rng.normal(size=(2 * n, 3))
    known, unknown = slice(0, n), slice(n, 2 * n)
    both = [(values[known], values[unknown]) for values in (own[:, None], shown, target)]
    return Columns("z", both[0], both[1], {"job": both[2], "copy": both[2]})


def test_feature_inference_finds_what_a_view_adds_to_own_columns():
    own, shown = feature_inference(columns_view(True), 0)
    assert (own.attack, shown.attack) == ("own", "z") and shown.rate == 1.0
    assert own.chance < own.low < own.high < shown.low, "own columns tell some of it: that is the control"
    own, shown = feature_inference(columns_view(False), 0)
    assert abs(shown.rate - own.rate) < own.high - own.low, "a view of noise adds nothing"


def linear(weight, bias=0.0):
    w = torch.tensor(weight, dtype=torch.float64)[:, None]
    return lambda x: x @ w + bias


@pytest.mark.parametrize("radius", RADII)
def test_pgd_is_exact_on_a_linear_model(radius):
    rng = np.random.default_rng(1)
    inputs, weight = rng.random((400, 6)), rng.normal(size=6)
    columns = np.array([0, 2, 5])
    logits = inputs @ weight - weight.sum() / 2
    reach = radius * np.abs(weight[columns]).sum()
    exact = (np.abs(logits) < reach).mean()
    target = WhiteBox("x", linear(weight, -weight.sum() / 2), inputs, columns)
    assert subspace_pgd(target, radius).rate == pytest.approx(exact, abs=1 / 400)
    moved = perturb(target, radius).numpy() - inputs
    assert np.abs(moved).max() <= radius + 1e-12
    assert (moved[:, [1, 3, 4]] == 0).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["erm", "erm_network", "scc"])
def test_pgd_agrees_with_the_adversarial_robustness_toolbox(ready, method):
    pytest.importorskip("art")
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    fitted = METHODS.get(method)(ready)
    inputs = ready.inputs[ready.split.test]
    columns = ready.columns(ready.roles.named("M"))

    class Wrapped(torch.nn.Module):
        def forward(self, x):
            return two_class(fitted.white_box(x.double())).float()

    classifier = PyTorchClassifier(
        Wrapped(), torch.nn.CrossEntropyLoss(), (inputs.shape[1],), 2, clip_values=None, device_type="cpu"
    )
    mask = np.zeros(inputs.shape[1], np.float32)
    mask[columns] = 1
    x = inputs.astype(np.float32)
    before = classifier.predict(x).argmax(axis=1)
    for radius in (0.05, 0.20):
        attack = ProjectedGradientDescent(
            classifier,
            np.inf,
            radius,
            radius / 5,
            max_iter=20,
            num_random_init=0,
            verbose=False,
            batch_size=512,
        )
        after = classifier.predict(attack.generate(x, mask=mask)).argmax(axis=1)
        ours = subspace_pgd(WhiteBox("x", fitted.white_box, inputs, columns), radius, restarts=1).rate
        assert abs(ours - (before != after).mean()) <= 0.02


def test_gradients_returned_to_a_party_reveal_the_labels_unless_they_are_noised(ready):
    net = METHODS.get("erm_network")(ready).predict
    rows = ready.split.train[:200]
    inputs, label = ready.inputs[rows], GERMAN.label.values[rows]
    exact, summed, noised = label_inference(net.returned_gradients(inputs, label, 0, noise=1.0, seed=0), 0)
    assert exact.rate == 1.0 and summed.rate > 0.95
    assert noised.attack == "batch-noise1" and noised.rate < noised.chance + 0.05


def test_rates_carry_an_interval():
    rate = Rate.of_counts("a", "v", 5, 100, 0.0)
    assert rate.low < 0.05 < rate.high and rate.low > 0
    balanced = Rate.balanced("a", "v", np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))
    assert balanced.rate == pytest.approx((1 + 2 / 3) / 2) and balanced.high <= 1
