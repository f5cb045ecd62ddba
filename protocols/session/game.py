"""What a party holds of a secret and of its square, for the share-distinguishing game.

Who may call it: the security evaluation alone (secure_sccvfl/audit/share_probe.py), whose secrets are constants
that everybody knows. Why it is safe: a view of such a secret tells nothing about any other. The secrets of the game
are shared, masked, opened and squared by the functions that serve every secret, with tuples of their own, so the game
judges the protocol that runs are made with. Nothing of it is printed or logged.
"""

from __future__ import annotations

from typing import Any

from protocols.operations import arithmetic
from protocols.ring import Words
from protocols.session.binding_tensors import words_in
from protocols.session.runtime import Session


def views_of_a_square(session: Session, values: Any, owner: int, count: int) -> dict[str, Words]:
    """What a party holds of `count` secrets of the owner and of their squares. One round.

    values: at the owner, else None. The kernel is that of every square: it opens the secret under a mask, for which
    the dealer has shared its square.
    """
    party = session.party
    share = words_in(session.share(values, owner=owner, shape=(count,)))
    masked, finish = arithmetic.squaring(party, share)
    mask = share - masked[0]
    (opened,) = party.open_masked("share probe", masked)
    result = finish([opened])
    square = result - 2 * opened * mask - (opened * opened if session.rank == 0 else 0)
    return {"share": share, "mask": mask, "square of the mask": square, "opened": opened, "result": result}
