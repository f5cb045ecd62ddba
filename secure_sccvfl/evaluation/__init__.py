"""Evaluation in plaintext on data that may be pooled: counterfactual models, scores, baselines and the frontier.

`counterfactual_models` (which models there are) and `counterfactual_fits` (how they change a column) make the
records; `scoring` gives accuracy, flip rates and gaps; `certified` the certified share, `coupling_bounds` the largest
flip rate that the tables allow; `methods` has the baselines, `pooled` all of it for a run,
`frontier` every lambda, `examples` single people, `views` what attackers hold. A benchmark run, `security_eval` and
`reproduce.py` call it; a party of a consortium never does.
"""
