"""What runs locally at a party: encoders, counterfactual generators, and their edits.

Nothing here sees s or the label of a record. Called by training and modes.
"""
