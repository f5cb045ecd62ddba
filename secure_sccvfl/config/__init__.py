"""The configuration of a run: one nested, typed description from which parsers, files, plans and schemas follow.

`sections` has the fields (`Data`, `Privacy`, ..., `Config`), `fields` what is derived from a field, `rules`
inferred defaults and checks, `session_file` the TOML file. `training.modes.options.RunOptions` is the checked
result. Nothing here imports torch or CrypTen for the default method, so reports can read settings.
"""
