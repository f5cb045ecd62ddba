"""What people see while a party or the dealer runs: lines on the terminal, a page, and metrics for Prometheus.

Called by the processes of `run`. It reads names, steps, times and counts, and never a value of the computation.
"""
