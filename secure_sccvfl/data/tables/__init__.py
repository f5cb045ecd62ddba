"""One party's table: how its cells are written, what each reads as, and everything that is wrong with it at once.

Training, prediction, `sccvfl check` and `sccvfl init` read cells here and nowhere else.
"""
