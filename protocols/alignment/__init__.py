"""Private record alignment: which rows of a party are about the same people as the rows of the others.

`ids` makes spellings of an id equal. `interface` chooses one of `pre_aligned` (option `exact`: equal lists), `psi`
(`revealed`: all learn the common records, by Diffie-Hellman, without the dealer) and `hidden_intersection` (`hidden`:
no party learns them: the dealer matches keyed pseudonyms, and a secret-shared membership mask says which rows count).
The result is an `Aligned` table: rows, and where own records are in them.
"""
