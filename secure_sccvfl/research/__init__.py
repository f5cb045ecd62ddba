"""Comparisons and measurements for papers and documents: no production run imports this package.

`paper` is the paper-faithful method, `split` the mode that returns gradients, `benchmarks` those of `bench.py`. The
modules are the experiments of `reproduce.py`: methods and one seed (`experiments`), tables over seeds and the paper's
tables as one plan (`tables`), whole runs under MPC (`secure_runs`), `role_stability` and `qualitative`. It may import
every other package; others name its entries as "module:attribute" in registries, which import them on first use.
"""
