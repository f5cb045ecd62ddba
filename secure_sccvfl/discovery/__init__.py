"""Which columns depend on s: released statistics (one interface, a plaintext and a secure engine), scores, roles.

Path of a contingency table: `noisy_tables.release_tables` -> `statistics.GroupSums` -> an engine -> `NoisyTables` at
its owner -> `scores` (scores, p-values, redraws) -> `decisions.decide` (roles). `residuals` has what a column shows
beyond its owner's other columns. Called by training, by the job `discovery`, and by reports that explain roles.
"""
