"""Records and what is publicly known of them: the feature dictionary, data sets, splits, and one party's columns.

This is the lowest room: every other room may import it, and it imports none of them.
"""
