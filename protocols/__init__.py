"""MPC substrate: network, dealer, kernels, CrypTen sessions, training steps, record alignment."""
