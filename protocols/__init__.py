"""MPC protocols and the CrypTen session: shares, tuples and releases, without columns, roles or models.

From the lowest: `ring` (integers modulo 2^64, fixed point, packed symmetric matrices), `errors`, `config` (public
settings of a session), then the packages `net`, `records`, `authentication`, `dealing`, `operations`, `session`,
`steps`, `alignment`. All parties call a protocol function together, with the same public arguments. `Session` opens
a value only for a release that the plan declares.
"""
