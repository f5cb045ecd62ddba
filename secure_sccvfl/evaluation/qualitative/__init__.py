"""What a model does to single people and to representations, as data: for public benchmark records alone.

Called by the harness of a benchmark run, by `reproduce.py qualitative` and by `explain`; never by a party. Nothing
here draws or prints. Every measure has its control beside it: shuffled s, or chance.
"""
