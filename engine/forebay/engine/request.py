"""A request's life in the engine core: what comes in, its states, and how it ends.

Duty: the types of a request and the one transition table. Invariants: a state changes only through `Request.move`,
which refuses what the table does not list; `DONE` is reached exactly once. A request ends logically first (its one
`Ended` event) and gives its slot and pages back when the last step that uses them is committed: that is `DRAINING`.
A preempted request owns tokens only. Only the scheduler and its parts change a `Request`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forebay.contract.errors import Bug


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick a token. Temperature 0 is greedy, `top_k` 0 and `top_p` 1.0 are off, `seed` is unsigned 64 bit."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One sequence to generate.

    `stop_token_ids` end the request unless `ignore_eos`. `tenant` separates cached prefixes and shares the engine
    fairly. A higher `priority` goes first. `deadline_s` is absolute, on the clock of the scheduler's `now_s`.
    """

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    tenant: str
    priority: int
    deadline_s: float


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "timeout"
    ERROR = "error"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of a request.

    `generated_tokens` counts a stop token that was sampled but not delivered; `cached_tokens` of the prompt were
    reused from the prefix cache when it first ran; `message` says more for `FinishReason.ERROR` and is else empty.
    """

    request_id: int
    reason: FinishReason
    generated_tokens: int
    cached_tokens: int
    message: str = ""


class State(enum.Enum):
    """Where a request is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    DRAINING = "draining"
    DONE = "done"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.QUEUED: frozenset({State.RUNNING, State.DONE}),
        State.RUNNING: frozenset({State.PREEMPTED, State.DRAINING, State.DONE}),
        State.PREEMPTED: frozenset({State.RUNNING, State.DONE}),
        State.DRAINING: frozenset({State.DONE}),
        State.DONE: frozenset(),
    }
)
"""The states that may follow each state."""


class Request:
    """A live request. `tokens` is the prompt followed by what was generated and committed."""

    __slots__ = (
        "admitted",
        "arrival",
        "cached_tokens",
        "charge_tokens",
        "deadline_s",
        "digests",
        "id",
        "max_length",
        "priority",
        "prompt_tokens",
        "sampling",
        "slot",
        "state",
        "stop_ids",
        "tenant",
        "tokens",
    )

    def __init__(self, new: NewRequest, arrival: int) -> None:
        self.id = new.request_id
        self.arrival = arrival
        self.priority = new.priority
        self.tenant = new.tenant
        self.sampling = new.sampling
        self.stop_ids: frozenset[int] = frozenset() if new.ignore_eos else new.stop_token_ids
        self.deadline_s = new.deadline_s
        self.tokens = list(new.prompt)
        self.prompt_tokens = len(new.prompt)
        self.max_length = len(new.prompt) + new.max_new_tokens
        self.state = State.QUEUED
        self.slot = 0
        self.admitted = False
        self.cached_tokens = 0
        self.charge_tokens = self.max_length
        self.digests: list[bytes] = []

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of service: higher priority first, then earlier arrival."""
        return (-self.priority, self.arrival)

    def move(self, target: State) -> None:
        """Change state; raises `Bug` for a move that the table does not list."""
        if target not in TRANSITIONS[self.state]:
            raise Bug(f"request {self.id} cannot go from {self.state.value} to {target.value}")
        self.state = target

    def ended(self, reason: FinishReason, undelivered_tokens: int = 0, message: str = "") -> Ended:
        """The terminal event for this request as it stands."""
        generated = len(self.tokens) - self.prompt_tokens + undelivered_tokens
        return Ended(self.id, reason, generated, self.cached_tokens, message)
