"""Weighted choice of a revision by a sticky key.

Weighted rendezvous hashing: each (key, revision) pair gets a fixed draw, and the revision with the highest weighted
draw wins. So a key stays where it is while weights stay, shares follow the weights, and when one weight rises keys
move only towards that revision. The result does not depend on the order of the weights.
"""

import hashlib
import math
from collections.abc import Sequence

from forebay.contract.wire import RouteWeight

_SCALE = float(2**64)


def draw(key: bytes, revision: str) -> float:
    """A number in (0, 1), fixed for this pair and uniform over keys."""
    digest = hashlib.blake2b(key, digest_size=8, key=revision.encode()[:64]).digest()
    return (int.from_bytes(digest, "big") + 0.5) / _SCALE


def pick_revision(weights: Sequence[RouteWeight], key: bytes) -> str | None:
    """The revision of this key among those with a positive weight; None when there is none.

    Score -w / ln(u), u uniform: the largest is revision r with probability w_r / sum(w).
    """
    live = [weight for weight in weights if weight.weight > 0]
    if len(live) <= 1:
        return live[0].revision if live else None
    best = max(live, key=lambda weight: (-weight.weight / _log(draw(key, weight.revision)), weight.revision))
    return best.revision


def _log(number: float) -> float:
    # A draw within rounding of 1 would give ln = 0; the smallest step below keeps the score finite.
    return math.log(number) if number < 1.0 else -math.ulp(1.0)
