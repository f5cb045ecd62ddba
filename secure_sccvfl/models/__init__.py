"""What runs locally at a party: encoders and counterfactual generators.

Nothing here sees s or the label of a record. Called by training and modes.
"""
