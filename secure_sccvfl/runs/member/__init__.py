"""A member of a consortium on its own host: plans and signatures, jobs in order, the result that it keeps.

The programs in launch/ call it. It uses the rooms `run` and `report`, and never sees another member's folder.
"""
