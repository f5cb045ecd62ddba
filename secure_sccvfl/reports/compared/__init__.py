"""How the model of a run compares: figures of all models, judges with their null control and gates, the frontier.

Called by the page, by the terminal's first screen, and by the API's `Run`. A flip rate is never told without what
the same judge finds under shuffled groups, and no sentence rests on a judge that fails a gate.
"""
