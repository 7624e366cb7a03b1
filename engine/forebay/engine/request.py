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
from typing import TYPE_CHECKING, Final

from forebay.contract.errors import Bug

if TYPE_CHECKING:
    from forebay.engine.drafting import DraftState


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick a token.

    Temperature 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 are off; `seed` is unsigned
    64 bit. `logit_bias` has (token id, added logit). `top_logprobs` None asks for no log probabilities, 0 for those of
    the chosen tokens only. The stop tokens cannot be chosen before `min_tokens` tokens are generated.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    min_tokens: int = 0


class DraftKind(enum.Enum):
    """Who proposes tokens for speculation."""

    NGRAM = "ngram"
    MODEL = "draft"


@dataclass(frozen=True, slots=True)
class Speculation:
    """Ask for up to `max_tokens` drafted tokens a step."""

    kind: DraftKind
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the KV of prompt tokens [start, end) is worth keeping: priority 0 to 100 for `duration_s` seconds.

    The time starts when the request gives the pages back. A page that several ranges touch takes the highest priority.
    Pages that nobody spoke for have priority 35; those below go before them.
    """

    start: int
    end: int
    priority: int
    duration_s: float


class RequestKind(enum.Enum):
    """What a request wants of the model."""

    GENERATE = "generate"
    EMBED = "embed"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One sequence to generate.

    `stop_token_ids` end the request unless `ignore_eos`. `tenant` separates cached prefixes and shares the engine
    fairly. A higher `priority` goes first. `deadline_s` is absolute, on the clock of the scheduler's `now_s`.
    `grammar` is the key of a compiled grammar in the core's store, empty for free text. A request of kind `EMBED` ends
    with the vector of its prompt, whatever `max_new_tokens` says.
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
    grammar: str = ""
    speculation: Speculation | None = None
    retention: tuple[Retention, ...] = ()
    kind: RequestKind = RequestKind.GENERATE


@dataclass(frozen=True, slots=True)
class SlotStart:
    """What a runner must know of a request that takes a slot, the first time or again after preemption.

    `tokens` are all tokens known at that moment, the first `prompt_tokens` of them the prompt; the runner rebuilds
    penalty counts and the grammar's state from the rest.
    """

    sampling: SamplingParams
    tokens: tuple[int, ...]
    prompt_tokens: int
    stop_ids: frozenset[int] = frozenset()
    grammar: str = ""
    speculation: Speculation | None = None
    kind: RequestKind = RequestKind.GENERATE


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """Speculation of one request, over the `steps` in which tokens were drafted.

    `histogram[i]` of them accepted i drafted tokens and so delivered i + 1. Only accepted tokens that were delivered,
    or ended the request as its stop token, count.
    """

    drafted: int
    accepted: int
    steps: int
    histogram: tuple[int, ...]

    @property
    def mean_acceptance_tokens(self) -> float:
        """Mean tokens of a drafting step, the bonus token included; 1 when nothing was drafted."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


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
    reused from the prefix cache when it first ran; `message` says more for `FinishReason.ERROR` and is else empty;
    `vector` is the embedding of a request that asked for one.
    """

    request_id: int
    reason: FinishReason
    generated_tokens: int
    cached_tokens: int
    message: str = ""
    speculation: SpeculationReport | None = None
    vector: tuple[float, ...] = ()


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
        "drafts",
        "grammar",
        "id",
        "kind",
        "max_length",
        "priority",
        "prompt_tokens",
        "retention",
        "sampling",
        "slot",
        "speculation",
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
        self.grammar = new.grammar
        self.speculation = new.speculation
        self.drafts: DraftState | None = None
        self.retention = new.retention
        self.kind = new.kind
        self.stop_ids: frozenset[int] = frozenset() if new.ignore_eos else new.stop_token_ids
        self.deadline_s = new.deadline_s
        self.tokens = list(new.prompt)
        self.prompt_tokens = len(new.prompt)
        self.max_length = len(new.prompt) + (1 if new.kind is RequestKind.EMBED else new.max_new_tokens)
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

    def slot_start(self) -> SlotStart:
        """What the runner needs when this request takes a slot now."""
        return SlotStart(
            sampling=self.sampling,
            tokens=tuple(self.tokens),
            prompt_tokens=self.prompt_tokens,
            stop_ids=self.stop_ids,
            grammar=self.grammar,
            speculation=self.speculation,
            kind=self.kind,
        )

    def move(self, target: State) -> None:
        """Change state; raises `Bug` for a move that the table does not list."""
        if target not in TRANSITIONS[self.state]:
            raise Bug(f"request {self.id} cannot go from {self.state.value} to {target.value}")
        self.state = target

    def ended(
        self,
        reason: FinishReason,
        undelivered_tokens: int = 0,
        message: str = "",
        vector: tuple[float, ...] = (),
    ) -> Ended:
        """The terminal event for this request as it stands."""
        return Ended(
            request_id=self.id,
            reason=reason,
            generated_tokens=len(self.tokens) - self.prompt_tokens + undelivered_tokens,
            cached_tokens=self.cached_tokens,
            message=message,
            speculation=None if self.drafts is None else self.drafts.report(),
            vector=vector,
        )
