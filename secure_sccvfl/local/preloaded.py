"""What the processes of a session need, imported once by the process that they are forked from."""

import contextlib
import gc
import signal
from importlib import import_module

# Ctrl-C goes to every process of a terminal: the launcher says so, in one line, and this process ends with it.
usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
for name in (
    "protocols.session.node",
    "secure_sccvfl.run.process",
    "secure_sccvfl.run.score",
    "secure_sccvfl.run.train",
    # these are imported late elsewhere, because they are slow
    "dp_accounting.rdp",
    "opendp.measurements",
    "opendp.metrics",
):
    with contextlib.suppress(Exception):  # whoever needs it imports it again, and says what is missing
        import_module(name)
signal.signal(signal.SIGINT, usual)
gc.freeze()  # pages that a collection does not touch stay shared
