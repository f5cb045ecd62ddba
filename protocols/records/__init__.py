"""Records on disk: hash-chained logs, declared releases, transcripts, owner-only files."""
