"""Benchmarks of `launch/bench.py`: operations, steps, noisy tables, alignments and whole trainings, next to peers.

`measuring` has the loop that runs systems in turn, and the form of a result. `steps` compares operations and a step,
`preparation` noisy tables and alignment, `trainings` whole trainings, `shards` row shards (on `random_rows`). `stock`
and `spu_process` are the peers.
"""
