"""Which columns depend on s: noisy statistics of s (a seam with two sides), scores, and proposed roles.

Called by training, by the job `discovery`, and by reports that explain roles.
"""
