"""The suite. One thread for each worker: with more, workers wait for each other, at several times the CPU."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when numpy and torch are imported
    os.environ.setdefault(name, "1")
