"""The public Python API: `functions` (load, train, discover, evaluate), `trained`, `runs` (under MPC), `estimator`.

`frames` converts DataFrames; `figures` has tables with intervals. `secure_sccvfl.__init__` re-exports the names. It
may import every package except `research`, and has no method of its own: it calls `training`, `discovery`,
`evaluation` and `runs.local`.
"""
