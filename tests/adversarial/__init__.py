"""Attacks on whole runs. Each has a chance level, and a control without the defence in which it succeeds.

Attacks that once worked, and what holds them off now:

| attack | test |
|---|---|
| s of all training records from many heads | `test_retraining`, `test_retrained_models` |
| the same from scores, or from decisions alone, over real sessions | `test_retrained_sessions` |
| test figures tell s or label of a training record | `test_noisy_figures` |
| another party's columns, or s, by asking again with other own columns | `test_prediction_oracle` |
| free tables or figures under the name of an earlier run; with three parties; before an audit | `test_run_names` |
| another head for the charge of an interrupted run | `test_resumed_heads` |
| made-up figures, made-up noise | `test_forged_figures`, `test_planned_figures` |
| a new budget by another Unicode form, id rule or ledger | `test_same_people` |
| which single party holds a record, by elements that come twice | `test_alignment_attacks` |
| settings that approval does not show | `test_plan_shows` |
| decisions about records that the receiver does not hold | `test_claimed_presence` |
| sizes of messages | `test_message_sizes` |

Changes to the code that tests once overlooked are in `tests/mutants/mutations.toml`.
"""
