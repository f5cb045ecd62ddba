"""The folder of a finished run, of all parties or of one: where things are, what is made last, what was signed.

The programs, `reports.verify` and the room `consortium` use it.
"""
