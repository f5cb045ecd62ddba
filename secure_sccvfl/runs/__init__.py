"""One party's part in a session: the jobs, checkpoints, model files and logs.

`process` (a party or the dealer, from settings to exit code; `planned_sessions`: one for each job of a session file)
-> `jobs` (the registry) -> `alignment` (first phase of a job), `discover`, `train`, `evaluate`, `predict` (`answers`:
what it gives), `serve` (with its `endpoint`), `selftest`. They share `cached_tables`, `checkpoints`, `model_files`
(encoder and tables in the clear, a share of the head), `scoring` (common to evaluate and predict), `files`, `console`
and `status`. A job declares its releases before the session starts; the method is in `discovery` and `training`.

`member` runs a party on its own host, `local` a whole session on one machine.
"""
