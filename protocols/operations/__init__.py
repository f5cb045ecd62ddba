"""Kernels on bare shares: products, truncation, comparison, selection, series, noise."""
