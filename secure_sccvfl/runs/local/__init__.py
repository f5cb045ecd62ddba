"""What runs on this machine alone: sessions, whole runs and security evaluations.

`processes` starts the parties and the dealer (`preloaded`: imports before the fork; `relay`: delays or copies
traffic), `whole_run` goes from training to report, `screens` shows results in the terminal, `security_evaluation`
attacks it, `card_review` repeats discovery for a card. Called by `launch/`, `api` and `research`.
"""
