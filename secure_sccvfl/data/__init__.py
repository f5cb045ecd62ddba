"""Records and what is publicly known of them: the feature dictionary, data sets, splits, and one party's columns.

The lowest room: every other may import it, and it imports none of them.
"""
