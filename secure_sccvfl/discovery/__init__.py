"""Which columns depend on s: released statistics (one interface, a plaintext and a secure engine), scores, roles.

Path of a contingency table: `discovery.Discovery.refresh` -> `noisy_tables.release_tables` -> `statistics.GroupSums`
(what is summed, its sensitivity) -> an engine (`secure_statistics`, or `statistics.PlainStatistics`) -> `NoisyTables`
at the column's owner -> `scores` (HSIC computed under MPC from the noisy shares and opened to all; p-values, redraws)
-> `decisions.decide` (roles). `residuals` has what a column shows beyond its owner's other columns, `structured`
estimates tables of ordered and crossed groups. `cached_releases` answers from earlier releases at no cost. The same
tables then give the generators of `models`.

Called by training, by the job `discovery`, and by reports that explain roles. What depends on records is charged
before it is opened; scores and roles follow from that.
"""
