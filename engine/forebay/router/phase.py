"""The phases of an exchange, and which may follow which.

A retry goes back from HEADERS to CONNECT; once a head went to the client (FIRST_CHUNK) there is no way back. DONE is
reached from every phase, exactly once.
"""

import enum


class Phase(enum.IntEnum):
    """Where an exchange is; the names are metric labels, the numbers index the table of moves."""

    CONNECT = 0
    HEADERS = 1
    FIRST_CHUNK = 2
    BODY = 3
    DONE = 4


MOVES = (
    (Phase.CONNECT, Phase.HEADERS, Phase.DONE),
    (Phase.CONNECT, Phase.FIRST_CHUNK, Phase.DONE),
    (Phase.BODY, Phase.DONE),
    (Phase.DONE,),
    (),
)
