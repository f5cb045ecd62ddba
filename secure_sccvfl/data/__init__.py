"""Records and their public description: from a party's table to its rows in input space.

`features` (the feature dictionary: meaning, range or categories of a column), `sources` (CSV, parquet and SQL),
`table_rows` (features that stay in a CSV file until workers of row shards read them), `files` (description and
tables), `checks` and `drafts` (`sccvfl check`, `init`), `party_data` (`PartyData`: what one process of a run holds;
`Schema`: the public part; the split by id), `id_shapes` (length and padding of ids), `groups` (ordered and crossed
s), `splits` (parts of a split, and the split of pooled data), `layout` (input space: numbers scaled to [0, 1],
categories one-hot), `party` (`Party`: own rows, and their public bins for tables of s). For benchmarks: `catalogue`
(`load(name)`), `dataset` (pooled records), `embedded`, `census`, `synthetic`. `randomness` has seeded streams,
`registry` named choices.

The lowest package here: it imports none of the others. A process reads the files of its own party alone.
"""
