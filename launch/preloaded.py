"""What the processes of a session need, imported once by the process that they are forked from."""

import contextlib
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
    with contextlib.suppress(Exception):  # whoever needs it imports it again, and says what is missing
        import_module(name)
gc.freeze()  # pages that a collection does not touch stay shared
