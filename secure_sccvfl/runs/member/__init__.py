"""A member of a consortium on its own host: plans and signatures, jobs in order, the result that it keeps.

`plan` (what people approve), `outlook` (the plan in lines, with this host's records and costs), `member` (all jobs of
a session file), `preflight` (reaches every peer and compares), `kit` (one archive per member), `card_updates`
(reviews of a card sent to other hosts), `orchestrated` (a member that an orchestrator runs), `flare` (NVIDIA FLARE's
classes for it). The programs in launch/ call it. It uses `runs` and `reports`, and never sees another member's
folder.
"""
