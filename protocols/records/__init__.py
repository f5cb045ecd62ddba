"""What is written down: hash-chained logs, declared releases, transcripts, files of one owner."""
