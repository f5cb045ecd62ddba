"""Logits of networks mean the same outside as those of heads: of each class against the rest."""

import numpy as np
import torch

from secure_sccvfl.api.trained import probabilities
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.research.paper.networks import SplitNetwork, TrainedNetwork, against_rest
from secure_sccvfl.training.plain import log_loss

UNITS = torch.tensor(np.random.default_rng(0).normal(0, 3, (50, 4)))


def test_logits_against_the_rest_have_the_probabilities_of_the_softmax():
    logits = against_rest(UNITS).numpy()
    expected = torch.softmax(UNITS, dim=1).numpy()
    assert np.abs(probabilities(logits, "multiclass") - expected).max() < 1e-12
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))
    assert np.abs(probabilities(UNITS.numpy(), "multiclass") - expected).max() > 0.1, "units themselves do not"


def test_the_log_loss_of_a_network_of_several_classes_is_that_of_its_probabilities():
    task: Task = "multiclass"
    net = SplitNetwork((3, 2), 4, 5, 0.0)
    trained = TrainedNetwork(net.eval(), torch.zeros(5), torch.ones(5), task, torch.eye(5), temperature=2.0)
    inputs = np.random.default_rng(1).normal(size=(30, 5))
    label = np.random.default_rng(2).integers(0, 4, 30)
    with torch.no_grad():
        chance = torch.softmax(net(torch.tensor(inputs).float()) / 2.0, dim=1).double().numpy()
    own = np.eye(4)[label]
    expected = -(own * np.log(chance) + (1 - own) * np.log(1 - chance)).sum(axis=1).mean()
    assert abs(log_loss(trained(inputs), label, task) - expected) < 1e-5
