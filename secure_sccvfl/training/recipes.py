"""Recipes of the method: one is the default, the others are there for comparison.

- `scc`: columns that carry evidence are mediators, tables are shrunk by their known noise, edits move as few records
  as possible, lambda is a fixed price of a squared shift, and the guard on proxies has a weight of its own.
- `paper`: the paper's method as far as nobody may see another's data. Tables are scaled to a length before noise is
  added. Within each party the 60 % of columns with the highest HSIC follow from s, and the half of these with the
  largest probability gap are proxies (section 3.2); both are of these tables, and their sum is the score. One release
  before training, and one refresh during it. Masked generators and adversaries train at the parties (mode `split`,
  secure_sccvfl/training/modes/split_local.py). Here are the settings of the paper's first data set; a run takes
  those of its
  own (`paper_settings`).
"""

from __future__ import annotations

from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.paper_settings import GERMAN

SCC = TrainConfig()
PAPER = TrainConfig(
    take_lambda=GERMAN.lambda_cons,
    steps=GERMAN.epochs - GERMAN.warmup,
    refreshes=0,
    late_refreshes=GERMAN.refreshes,
    consistency_from="records",
    discovery=DiscoveryConfig("tri-partition", "paper", rho_p=0.5, per_party=True, sketch="clipped"),
    generator=GeneratorConfig("masked", scale=GERMAN.edit_scale, latent=GERMAN.latent),
)
