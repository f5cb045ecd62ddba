"""Selective counterfactual consistency in vertical federated learning: the method."""
