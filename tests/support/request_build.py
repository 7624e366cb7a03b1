"""Builders for tests of request parsing and serving."""

from typing import Any

from forebay.engine.server.limits import RequestLimits
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.request import StructuredSettings

LIMITS = RequestLimits(
    served_names=("m", "alias"),
    max_prompt_tokens=100,
    max_prompt_chars=1000,
    max_tokens=50,
    default_max_tokens=16,
    max_sequence_tokens=128,
    max_n=4,
    max_stop=2,
    vocabulary=500,
    structured=StructuredSettings("auto", 1 << 14, 8, Bounds()),
)


def chat_body(**fields: Any) -> dict[str, Any]:
    """A valid chat body with these fields set."""
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def completion_body(**fields: Any) -> dict[str, Any]:
    """A valid completion body with these fields set."""
    return {"model": "m", "prompt": "hello", **fields}
