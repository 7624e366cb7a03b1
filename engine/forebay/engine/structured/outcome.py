"""How a structured answer ended, as the client sees it. Pure; called by the server for each choice.

`stop` means complete and valid, and nothing else does: a stop string, a limit or a deadline inside the document makes
the answer `length` with `forebay.incomplete` true in the choice.
"""

from dataclasses import dataclass
from typing import Any, Final

import orjson

INCOMPLETE_HEADER: Final = "x-forebay-incomplete"
"""Header `x-forebay-incomplete: true` of a whole answer in which some choice is incomplete."""


@dataclass(frozen=True, slots=True)
class StructuredEnd:
    """`finish_reason` for the client, and whether the answer is cut short."""

    finish_reason: str
    incomplete: bool

    def fields(self) -> dict[str, Any]:
        """What a choice carries besides `finish_reason`; nothing when it is complete."""
        return {"forebay": {"incomplete": True}} if self.incomplete else {}


def structured_end(text: str, *, is_json: bool, ended_by_token: bool) -> StructuredEnd:
    """The end of an answer that a grammar governs.

    `text` is the whole answer without reasoning. `ended_by_token` says that a stop token of the model ended it, which
    the grammar allows only when the answer is complete: not a stop string, a limit or a deadline. An answer that
    reached a limit with its last bracket is complete too; `is_json` says that its brackets mean that.
    """
    if ended_by_token or (is_json and is_closed_json(text)):
        return StructuredEnd("stop", incomplete=False)
    return StructuredEnd("length", incomplete=True)


def is_closed_json(text: str) -> bool:
    """Whether the text is a JSON object or array whose last bracket is closed, so that nothing could follow."""
    stripped = text.strip()
    if not stripped or stripped[0] not in "{[" or stripped[-1] not in "}]":
        return False
    try:
        orjson.loads(stripped)
    except orjson.JSONDecodeError:
        return False
    return True
