"""Readers of result data: Markdown tables and plots. Nothing here computes a result."""
