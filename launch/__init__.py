"""The programs. Each parses its arguments, calls the library, and prints the result.

Only other programs and tests import from here.
"""
