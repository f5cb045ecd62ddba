"""Which columns depend on s: noisy statistics of s (a seam with two sides), scores, roles, and policy cards.

Called by training, by the job `discovery`, and by reports that explain roles.
"""
