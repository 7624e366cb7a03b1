"""What one request may ask for, and how its fields are read again and again: lengths, counts, defaults.

Pure values, made once by `Service` when the tokenizer is loaded. Every parser of a request body takes them.
"""

from dataclasses import dataclass

from forebay.contract.errors import InvalidRequest
from forebay.engine.request import Speculation
from forebay.engine.server.fields import Fields, shown
from forebay.engine.structured.request import StructuredSettings


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of one request; lengths in tokens, `max_prompt_chars` bounds text before it is encoded.

    `speculation` is what a request gets that does not choose; `may_draft` says whether a draft model is loaded;
    `may_record` whether answers may carry a reproducibility record.
    """

    served_names: tuple[str, ...]
    max_prompt_tokens: int
    max_prompt_chars: int
    max_tokens: int
    default_max_tokens: int
    max_sequence_tokens: int
    max_n: int
    max_stop: int
    vocabulary: int
    structured: StructuredSettings
    max_top_logprobs: int = 20
    max_logit_bias: int = 1024
    draft_tokens: int = 4
    speculation: Speculation | None = None
    may_draft: bool = False
    may_record: bool = True


def served_model(fields: Fields, limits: RequestLimits) -> str:
    """The field `model`; 404 when this engine does not serve it."""
    model = fields.string("model")
    if model is None:
        raise fields.refuse("model", f"is required; this engine serves {', '.join(limits.served_names)}")
    if model not in limits.served_names:
        served = ", ".join(limits.served_names)
        raise InvalidRequest(
            f"model: {shown(model)} is not served here; this engine serves {served}", param="model", status=404
        )
    return model


def bounded_text(fields: Fields, name: str, text: str, limits: RequestLimits) -> str:
    """`text` when it is not empty and could fit."""
    if not text:
        raise fields.refuse(name, "must not be empty")
    bounded_length(fields, name, len(text), limits)
    return text


def bounded_length(fields: Fields, name: str, chars: int, limits: RequestLimits) -> None:
    """Refuse text that cannot fit even at the most characters one token can stand for."""
    if chars > limits.max_prompt_chars:
        raise fields.refuse(
            name, f"has {chars} characters, too many for a prompt of at most {limits.max_prompt_tokens} tokens"
        )


def token_ids(fields: Fields, name: str, items: list[object], limits: RequestLimits) -> tuple[int, ...]:
    """A prompt of token ids, each below the vocabulary's size."""
    if not items:
        raise fields.refuse(name, "must not be empty")
    if len(items) > limits.max_prompt_tokens:
        raise fields.refuse(name, f"has {len(items)} tokens; this engine takes at most {limits.max_prompt_tokens}")
    ids: list[int] = []
    for place, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < limits.vocabulary:
            raise fields.refuse(name, f"item {place} must be a token id below {limits.vocabulary}, not {shown(item)}")
        ids.append(item)
    return tuple(ids)
