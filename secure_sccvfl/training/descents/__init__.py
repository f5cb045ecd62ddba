"""How heads descend: rules of second-order steps for a grid of lambda, their shares, and the steps of a run."""
