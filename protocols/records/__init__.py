"""Records on disk (logs, not rows of data): hash-chained logs, declared releases, transcripts, owner-only files.

`chain` (append-only log), `releases` (`Release`, `ReleasePlan`, and the log that has a release before it is
opened), `transcript` (all that a process received, for attacks; off by default), `private` (files only their owner
can read).
"""
