"""`Session`: CrypTen tensors on our kernels, and how a process joins a session.

`node` (starts a party or the dealer), `runtime` (`Session`: inputs, openings, public exchanges; the only module
that imports crypten), `binding` and `binding_tensors` (what they replace in CrypTen), `tensors` (values behind a
tensor that are not plain shares), `rows` (inputs that are made a piece at a time, where they are used), `shards`
(tall tensors in several sessions), `products` (products that share a tuple), `saving` (shares to files of their
owner), `log_digests` (signed at the end).
"""
