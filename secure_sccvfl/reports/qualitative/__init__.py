"""Representations and single people for readers: a page's sections, the paper's analysis, one person explained.

Everything is made from data: report.json, the files of a run, or `evaluation.qualitative`. Single records are shown
where they are public, or to the party that holds them.
"""
