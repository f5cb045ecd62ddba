"""What people see while a party or the dealer runs: log lines, a page with its data, and metrics for Prometheus.

It reads names, steps, times and counts, and never a value of the computation.
"""
