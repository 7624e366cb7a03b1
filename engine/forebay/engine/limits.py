"""The scheduler's fixed numbers, and the check of a request against them.

Duty: say whether a request can ever run, before it takes any place. Used by the scheduler on `add`, and by the API
process to answer at once. A request that passes can always finish when it runs alone, so preemption terminates.
"""

import enum
from dataclasses import dataclass

from forebay.contract.errors import InvalidRequest, InvalidSpec

MAX_TOKEN_ID = 2**31 - 1


class AdmissionPolicy(enum.Enum):
    """When a waiting request may start.

    `MAX_UTILIZATION`: when pages for its tokens so far are free; a later shortage preempts by recompute.
    `GUARANTEED_NO_EVICT`: when pages for its longest possible end can be promised; nothing is ever preempted.
    """

    MAX_UTILIZATION = "maxUtilization"
    GUARANTEED_NO_EVICT = "guaranteedNoEvict"


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of one engine. `max_sequence_tokens` bounds prompt plus generated tokens.

    `max_batch_tokens` bounds the tokens of one step and is at least `max_running`, so that no decode ever waits for
    budget. `min_copy_tokens` is the shortest partial page worth copying from a cached one.
    """

    pages: int
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
        for name in ("pages", "page_tokens", "max_running", "max_waiting", "max_prompt_tokens", "max_sequence_tokens"):
            if getattr(self, name) < 1:
                raise InvalidSpec(f"{name} must be at least 1", field=name)
        if self.max_batch_tokens < self.max_running:
            raise InvalidSpec(
                f"max_batch_tokens {self.max_batch_tokens} must be at least max_running {self.max_running}",
                field="max_batch_tokens",
            )
        if self.max_in_flight not in {1, 2}:
            raise InvalidSpec("max_in_flight must be 1 or 2", field="max_in_flight")

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens of KV."""
        return -(-tokens // self.page_tokens)

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Raise `InvalidRequest` naming the field when such a request can never finish here."""
        if prompt_tokens < 1:
            raise InvalidRequest("the prompt is empty", param="prompt")
        longest = min(self.max_prompt_tokens, self.max_sequence_tokens - 1, self.pages * self.page_tokens)
        if prompt_tokens > longest:
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens; this engine takes at most {longest}", param="prompt"
            )
        if max_new_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        # The last generated token is never computed, so its KV needs no place.
        room = min(self.max_sequence_tokens, self.pages * self.page_tokens + 1) - prompt_tokens
        if max_new_tokens > room:
            raise InvalidRequest(
                f"{prompt_tokens} prompt tokens leave room for {room} generated tokens, not {max_new_tokens}",
                param="max_tokens",
            )
