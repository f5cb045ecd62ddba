"""Imports what the processes of a session need, once, in the process that they are forked from."""

import contextlib
import gc
import signal
from importlib import import_module

# Ctrl-C reaches every process of a terminal. The launcher reports it in one line, and this process ends with it.
usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
for name in (
    "secure_sccvfl.protocols.session.node",
    "secure_sccvfl.runs.process",
    "secure_sccvfl.runs.evaluate",
    "secure_sccvfl.runs.predict",
    "secure_sccvfl.runs.train",
    # Other modules import these late, because they are slow.
    "dp_accounting.rdp",
    "opendp.measurements",
    "opendp.metrics",
):
    with contextlib.suppress(Exception):  # a process that needs it imports it again and reports what is missing
        import_module(name)
signal.signal(signal.SIGINT, usual)
gc.freeze()  # pages that a collection does not touch stay shared
