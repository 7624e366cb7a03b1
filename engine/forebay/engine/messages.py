"""Messages between the API process and the core process, as flat arrays in JSON frames.

A message is one frozen dataclass; on the wire it is a list of its name and its fields in order. One `Step` carries
everything that a step changed, for all requests, as parallel arrays. Both processes run the same build, so the
shapes need no versions. Used by `server/core_client.py` and `core.py` over `channel.py`.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import orjson

from forebay.contract.errors import Bug
from forebay.engine.request import DraftKind, RequestKind, Retention, SamplingParams, Speculation

Logprobs = tuple[float, tuple[tuple[int, float], ...]]
"""Log probability of a token, and the likeliest tokens with theirs."""
SpeculationCounts = tuple[int, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to the core: what to load and how large. `values` to `batch_invariant`: see `Compute`.

    `groups` has (name, pages, window tokens) of each layer group. `draft_model` is empty when no request may draft with
    a model.
    """

    model: str
    values: str
    weights: str
    matmul: str
    kv: str
    kernels: str
    batch_invariant: bool
    threads: int
    groups: tuple[tuple[str, int, int], ...]
    page_tokens: int
    prefix_reuse: bool
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    max_prompt_tokens: int
    max_sequence_tokens: int
    admission: str
    draft_model: str
    draft_tokens: int


@dataclass(frozen=True, slots=True)
class Add:
    """Run one sequence. `deadline_s` is on the system's monotonic clock, which both processes share."""

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    tenant: str
    priority: int
    deadline_s: float
    grammar: str = ""
    speculation: Speculation | None = None
    retention: tuple[Retention, ...] = ()
    kind: RequestKind = RequestKind.GENERATE

    def with_id(self, request_id: int) -> "Add":
        """The same sequence under a request id."""
        return replace(self, request_id=request_id)


@dataclass(frozen=True, slots=True)
class Abort:
    """End these sequences; unknown ids leave a tombstone, so an abort may overtake its add."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """Build a compiled grammar and keep it under `key`; answered by `GrammarBuilt`. See `GrammarStore.put`."""

    key: str
    backend: str
    payload: str
    reasoning_end: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropGrammar:
    """Forget a grammar that no live request names."""

    key: str


@dataclass(frozen=True, slots=True)
class GrammarBuilt:
    """A grammar may be named by requests now, or cannot be: `problem` says why and is else empty."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new sequences and finish the running ones."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a `Load`; the answer shows that the core's loop turns."""

    number: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The core has loaded the model, in `load_s` seconds, and takes work."""

    load_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """State of the core after a turn of its loop. Counters only rise; `answered` is the last ping's number."""

    answered: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    pages_used: int
    pages_held: int
    pages_cached: int
    pages_total: int
    steps: int
    prefill_tokens: int
    decode_tokens: int
    reused_tokens: int
    preemptions: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens and ended sequences of one turn: token `tokens[i]` belongs to `request_ids[i]`.

    An ended sequence has its reason (`FinishReason` value), token counts, and a message for errors. `logprobs` is
    parallel to `tokens` or empty. `speculation` and `vectors` have (place among the ended, value) of those that have
    one: (drafted, accepted, steps, histogram), and the embedding. `started` has (request id, cached prompt tokens) of
    sequences that ran for the first time; it comes no later than their first token.
    """

    request_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    ended_ids: tuple[int, ...]
    ended_reasons: tuple[str, ...]
    ended_generated_tokens: tuple[int, ...]
    ended_cached_tokens: tuple[int, ...]
    ended_messages: tuple[str, ...]
    logprobs: tuple[Logprobs | None, ...] = ()
    speculation: tuple[tuple[int, SpeculationCounts], ...] = ()
    vectors: tuple[tuple[int, tuple[float, ...]], ...] = ()
    started: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A sequence the scheduler did not take. `status` is the HTTP status; `after_s` is 0 when a retry cannot help."""

    request_id: int
    status: int
    message: str
    param: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """The core cannot go on and ends after this message."""

    message: str


Message = (
    Start | Add | Abort | Grammar | DropGrammar | GrammarBuilt | Drain | Ping | Ready | Load | Step | Refused | Fault
)
MESSAGES: tuple[type[Message], ...] = get_args(Message)
_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in MESSAGES}


def encode(message: Message) -> bytes:
    """The frame body of a message."""
    return orjson.dumps((type(message).__name__, *(getattr(message, item.name) for item in fields(message))))


def decode(body: bytes) -> Message:
    """The message of a frame body; raises `Bug` for a frame no peer of this build can have written."""
    try:
        name, *values = orjson.loads(body)
        kind = _TYPES[name]
        if len(values) != len(fields(kind)):
            raise Bug(f"message {name} has {len(values)} fields")
        message = kind(*map(_frozen, values))
        return _typed(message) if isinstance(message, Add) else message
    except (ValueError, KeyError, TypeError) as error:
        raise Bug(f"unreadable message: {error}") from error


def _frozen(value: Any) -> Any:
    """Lists as tuples at every depth; lists of plain values, which may be long, are not walked one by one."""
    if not isinstance(value, list):
        return value
    return tuple(map(_frozen, value)) if value and any(isinstance(item, list) for item in value) else tuple(value)


def _typed(add: Add) -> Add:
    """An `Add` whose nested values are still JSON objects, with their own types."""
    fields_of: Any = add
    sampling, speculation = fields_of.sampling, fields_of.speculation
    return replace(
        add,
        sampling=SamplingParams(**{name: _frozen(value) for name, value in sampling.items()}),
        speculation=speculation and Speculation(DraftKind(speculation["kind"]), speculation["max_tokens"]),
        retention=tuple(Retention(**item) for item in fields_of.retention),
        kind=RequestKind(fields_of.kind),
    )
