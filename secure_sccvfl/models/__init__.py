"""Encoders and counterfactual generators, which run locally at a party.

`encoders` (rows in input space -> columns of the head), `generators` (interface and registry), `table_generator`
(generators that follow from noisy tables; `minimal` is the default), `table_gram` (the expected Gram matrix of
encoded changes, from tables only: the default source of the consistency penalty), `counterfactuals` (the same from
records; validity terms: what counterfactuals change), `missing` (how missingness depends on s), `certificate`
(decisions that no values of the mediators change, and the range penalty), `aware` (encodings per group, mode
`aware`), `cvae`.

Nothing here sees s or the label of a record, or opens a value. Called by training and its modes.
"""
