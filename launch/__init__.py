"""The programs. Each parses its arguments, calls the library, and prints what it returns.

Nothing imports from here but other programs and tests.
"""
