"""What the processes of a session need, imported once by the process that they are forked from."""

import gc
from importlib import import_module

for name in (
    "launch.run_dealer",
    "launch.run_party",
    "secure_sccvfl.score_jobs",
    "secure_sccvfl.train_job",
    # these are imported late elsewhere, because they are slow
    "dp_accounting.rdp",
    "opendp.measurements",
    "opendp.metrics",
):
    import_module(name)
gc.freeze()  # pages that a collection does not touch stay shared
