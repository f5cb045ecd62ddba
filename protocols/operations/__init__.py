"""Kernels on bare shares (NumPy arrays of ring elements). `session` installs them as operators of CrypTen tensors.

`arithmetic` (products, truncation), `banded` (tall and symmetric matrices under masks), `comparison`, `sigmoid`
(Fourier series), `group_table` (one party's groups times another's columns: contingency tables), `noise` (independent
Gaussian contributions; by default of the dealer and the holder of s). Kernels open masked values only.
"""
