"""Comparisons and measurements for papers and documents: no production run imports this package.

`paper` is the paper-faithful method, `split` the mode that returns gradients, `reproduction` the experiments of
`reproduce.py`, `benchmarks` those of `bench.py`. It may import every other package; others name its entries as
"module:attribute" in registries, which import them on first use.
"""
