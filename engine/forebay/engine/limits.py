"""The scheduler's fixed numbers, and the check of a request against them.

Duty: the layer groups with their page pools, how many pages a sequence keeps in each, and whether a request can ever
run, before it takes any place. Used by the scheduler on `add`, and by the API process to answer at once. A request
that passes can always finish when it runs alone, so preemption terminates.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forebay.contract.errors import InvalidRequest, InvalidSpec

MAX_TOKEN_ID = 2**31 - 1
_UNLIMITED: Final = 2**62


class AdmissionPolicy(enum.Enum):
    """When a waiting request may start.

    `MAX_UTILIZATION`: when pages for its tokens so far are free; a later shortage preempts by recompute.
    `GUARANTEED_NO_EVICT`: when pages for its longest possible end can be promised; nothing is ever preempted.
    """

    MAX_UTILIZATION = "maxUtilization"
    GUARANTEED_NO_EVICT = "guaranteedNoEvict"


class Extent(enum.Enum):
    """What one unit of a layer's state belongs to."""

    POSITION = "token"
    POSITIONS = "token group"
    REQUEST = "request"


class StateKind(enum.Enum):
    """What a layer keeps of the tokens before."""

    KV = "kv"
    MLA_LATENT = "mla_latent"
    INDEX_KEYS = "index_keys"
    COMPRESSED_KV = "compressed_kv"
    RECURRENT = "recurrent"


EXTENTS: Final[Mapping[StateKind, Extent]] = MappingProxyType(
    {
        StateKind.KV: Extent.POSITION,
        StateKind.MLA_LATENT: Extent.POSITION,
        StateKind.INDEX_KEYS: Extent.POSITION,
        StateKind.COMPRESSED_KV: Extent.POSITIONS,
        StateKind.RECURRENT: Extent.REQUEST,
    }
)
"""State per token lives in pages and can be cropped at any token; the other extents need pools of their own."""


def first_visible_block(position: int, window_tokens: int, page_tokens: int) -> int:
    """The first block that the token at `position` sees: (position - window_tokens, position], or all when it is 0."""
    return max(0, position - window_tokens + 1) // page_tokens if window_tokens else 0


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Layers whose pages live together: `pages` of them, and what each token sees (`window_tokens` 0 is everything)."""

    name: str
    pages: int
    window_tokens: int = 0
    state: StateKind = StateKind.KV

    def __post_init__(self) -> None:
        if self.pages < 1 or self.window_tokens < 0:
            raise InvalidSpec(
                f"layer group {self.name!r} has {self.pages} pages and a window of {self.window_tokens} tokens",
                field="groups",
            )
        extent = EXTENTS[self.state]
        if extent is not Extent.POSITION:
            raise InvalidSpec(
                f"layer group {self.name!r} keeps {self.state.value} state per {extent.value}; "
                f"this scheduler has pools for state per {Extent.POSITION.value} only",
                field="groups",
            )


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of one engine. `max_sequence_tokens` bounds prompt plus generated tokens.

    `max_batch_tokens` bounds the tokens of one step and is at least `max_running`, so that no decode ever waits for
    budget. `min_copy_tokens` is the shortest partial page worth copying from a cached one.
    """

    groups: tuple[PoolGroup, ...]
    page_tokens: int
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    max_prompt_tokens: int
    max_sequence_tokens: int
    max_in_flight: int = 2
    admission: AdmissionPolicy = AdmissionPolicy.MAX_UTILIZATION
    prefix_reuse: bool = True
    min_copy_tokens: int = 4
    max_tombstones: int = 4096
    tombstone_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("page_tokens", "max_running", "max_waiting", "max_prompt_tokens", "max_sequence_tokens"):
            if getattr(self, name) < 1:
                raise InvalidSpec(f"{name} must be at least 1", field=name)
        if not self.groups or len({group.name for group in self.groups}) < len(self.groups):
            raise InvalidSpec("there must be at least one layer group, each with its own name", field="groups")
        if self.max_batch_tokens < self.max_running:
            raise InvalidSpec(
                f"max_batch_tokens {self.max_batch_tokens} must be at least max_running {self.max_running}",
                field="max_batch_tokens",
            )
        if self.max_in_flight not in {1, 2}:
            raise InvalidSpec("max_in_flight must be 1 or 2", field="max_in_flight")

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens from the start of a sequence."""
        return -(-tokens // self.page_tokens)

    def resident_pages(self, group: PoolGroup, tokens: int) -> int:
        """Pages of `group` with which a sequence can grow token by token to `tokens`, steps in flight included."""
        pages = self.pages_for(tokens)
        return min(pages, self._window_pages(group)) if group.window_tokens else pages

    def _window_pages(self, group: PoolGroup) -> int:
        """Pages that the window and the steps in flight touch at the worst alignment."""
        return (group.window_tokens + self.max_in_flight - 1 + self.page_tokens - 2) // self.page_tokens + 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the longest sequence that every group can hold when it runs alone."""
        return min(
            _UNLIMITED
            if group.window_tokens and group.pages >= self._window_pages(group)
            else group.pages * self.page_tokens
            for group in self.groups
        )

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raise `InvalidRequest` naming the field when such a request can never finish here."""
        if prompt_tokens < 1:
            raise InvalidRequest("the prompt is empty", param="prompt")
        capacity = self.capacity_tokens
        longest = min(self.max_prompt_tokens, self.max_sequence_tokens - 1, capacity)
        if prompt_tokens > longest:
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens; this engine takes at most {longest}", param="prompt"
            )
        if max_new_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        # The last generated token is never computed, so its KV needs no place.
        room = min(self.max_sequence_tokens, capacity + 1) - prompt_tokens
        if max_new_tokens > room:
            raise InvalidRequest(
                f"{prompt_tokens} prompt tokens leave room for {room} generated tokens, not {max_new_tokens}",
                param="max_tokens",
            )
