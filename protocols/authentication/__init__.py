"""Arithmetic for authenticated shares: what a MAC on dealt ring elements needs.

`wide` has arrays of integers modulo 2^128 (shares and their MAC tags), their products with public 64-bit numbers,
random subset sums, and the dealer's tag corrections; `native.c` has the same loops for a C compiler.
"""
