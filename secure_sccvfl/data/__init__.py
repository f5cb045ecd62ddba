"""Records and their public description: feature dictionary, data sets, files, splits, and one party's columns.

The lowest package: every other package may import it, and it imports none of them.
"""
