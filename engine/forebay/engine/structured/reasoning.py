"""Whether a prompt leaves reasoning open, so that the grammar must wait for its end. Pure; called by the server."""

from collections.abc import Callable
from typing import Final

_CLOSE: Final = "</think>"


def reasoning_end(template: str, prompt_text: str, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """Token ids that end reasoning when the prompt leaves it open, else empty.

    `template` is the chat template's source; `prompt_text` the rendered prompt; `encode` gives the ids of a text.
    A template that knows `</think>` lets the model reason unless its own last words close the block.
    """
    if _CLOSE not in template:
        return ()
    tail = prompt_text[-4 * len(_CLOSE) :].rstrip()
    return () if tail.endswith(_CLOSE) else tuple(encode(_CLOSE))
