"""Mode `split`: the paper's split learning with head, labels and s under MPC; for comparison with mode `sealed`.

Every step opens to each party the gradient in its own activations, which reveals labels and s of training records.
The registry of modes (`training.modes`) names it as text, so a run of another mode does not import it.
"""
