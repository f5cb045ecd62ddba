"""The configuration of a run: one nested, typed description from which parsers, files, plans and schemas follow.

`sections` has the fields, `fields` what a field derives from its description, `rules` inferred defaults and checks.
Nothing here imports torch or CrypTen for the default method, so reports can read settings.
"""
