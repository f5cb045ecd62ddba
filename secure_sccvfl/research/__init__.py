"""Comparisons and measurements for papers and documents: no production run imports this package.

`bench.py` and `reproduce.py` call it. It may import every other package; none of them imports it.
"""
