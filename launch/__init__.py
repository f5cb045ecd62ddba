"""The programs. Each parses its arguments, calls the library, and prints the result.

`cli` is the program `sccvfl`, which starts the others. Only other programs and tests import from here.
"""
