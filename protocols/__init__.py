"""How values are computed in secret: runtime, transport, randomness, dealer, releases."""
