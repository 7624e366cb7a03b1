"""How many KV pages each layer group gets: the cache's bytes from the memory limit, and their split. Pure.

A page that is not in its group cannot help another, so the split follows what a request of middle length needs, unless
the configuration says the share of the window groups. Every group can hold the longest request alone. Called by
`resolve.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.engine.cgroup import Machine
from forebay.engine.keys import EngineConfig
from forebay.engine.limits import PoolGroup, SchedulerLimits

PROCESS_BYTES = 512 << 20
"""Memory of both processes beside weights and KV cache: interpreter, torch, tokenizer, activations."""
AUTO_KV_SHARE = 0.25
AUTO_KV_MAX_BYTES = 1 << 30
MIDDLE_TOKENS = 4096
"""Most tokens of the request of middle length, which is half of the model's longest."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose pages live together; `window_tokens` 0 sees everything. A draft model's pages count in the first."""

    name: str
    window_tokens: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What sizing needs to know of a model: its file's stem, limits, and bytes at the chosen precision."""

    name: str
    max_positions: int
    weight_bytes: int
    groups: tuple[CacheGroup, ...]


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Pages by layer group, and the configuration values that follow, each with its reason."""

    pages: tuple[int, ...]
    settings: dict[str, tuple[Any, str]]


def fit_cache(config: EngineConfig, model: ModelFacts, machine: Machine) -> CachePlan:
    """The pages of every group; raises `InvalidSpec` naming the key when the cache cannot be had."""
    free = machine.memory_bytes - model.weight_bytes - PROCESS_BYTES
    budget = (
        f"{machine.memory_reason} {machine.memory_bytes} bytes, weights {model.weight_bytes}, processes {PROCESS_BYTES}"
    )
    least = sum(_least_pages(config, group) * group.page_bytes for group in model.groups)
    if free < least:
        raise InvalidSpec(f"model does not fit: {budget}; give the engine more memory", field="model")
    size, reason = config.kv_cache_bytes, "as set, in whole pages"
    if size == 0:
        whole = sum(_demand(config, group, model.max_positions) for group in model.groups) * config.max_running
        size = max(least, min(whole, int(free * AUTO_KV_SHARE), AUTO_KV_MAX_BYTES))
        reason = f"the least of all running requests at full length, {AUTO_KV_SHARE:.0%} of free memory and 1 GiB"
    elif size > free:
        raise InvalidSpec(f"kv_cache_bytes {size} does not fit: at most {free} ({budget})", field="kv_cache_bytes")
    elif size < least:
        raise InvalidSpec(
            f"kv_cache_bytes {size} is less than the pages every engine needs ({least} bytes)", field="kv_cache_bytes"
        )
    return _split(config, model, size, reason)


def _split(config: EngineConfig, model: ModelFacts, size: int, reason: str) -> CachePlan:
    share, share_reason = _window_share(config, model)
    wanted = {True: size * share, False: size * (1 - share)}
    pages = []
    left = size - sum(_least_pages(config, group) * group.page_bytes for group in model.groups)
    for group in model.groups:
        least = _least_pages(config, group)
        more = min(left, max(0, int(wanted[group.window_tokens > 0]) - least * group.page_bytes)) // group.page_bytes
        left -= more * group.page_bytes
        pages.append(least + more)
    held = sum(count * group.page_bytes for count, group in zip(pages, model.groups, strict=True))
    parts = ", ".join(
        f"{count} pages of {group.page_bytes} bytes ({group.name})"
        for count, group in zip(pages, model.groups, strict=True)
    )
    settings = {"kv_cache_bytes": (held, f"{reason}; {parts}"), "kv_window_share": (share, share_reason)}
    return CachePlan(tuple(pages), settings)


def _window_share(config: EngineConfig, model: ModelFacts) -> tuple[float, str]:
    """Share of the bytes for groups with a window."""
    windowed = [group for group in model.groups if group.window_tokens]
    if not windowed or len(windowed) == len(model.groups):
        return float(bool(windowed)), "all layers of the model are of one kind"
    if config.kv_window_share:
        return config.kv_window_share, "as set"
    tokens = min(model.max_positions // 2, MIDDLE_TOKENS)
    all_bytes = sum(_demand(config, group, tokens) for group in model.groups)
    share = sum(_demand(config, group, tokens) for group in windowed) / all_bytes
    return round(share, 4), f"what a request of {tokens} tokens needs"


def _demand(config: EngineConfig, group: CacheGroup, tokens: int) -> int:
    """Bytes that a request of `tokens` tokens keeps in a group, the chunk being computed included."""
    kept = min(tokens, group.window_tokens + config.max_batch_tokens) if group.window_tokens else tokens
    return (-(-kept // config.page_tokens) + 1) * group.page_bytes


def _least_pages(config: EngineConfig, group: CacheGroup) -> int:
    """Two pages, or a whole window and the chunk being computed."""
    if not group.window_tokens:
        return 2
    return -(-(group.window_tokens + config.max_batch_tokens) // config.page_tokens) + 2


def pool_groups(model: ModelFacts, pages: Sequence[int]) -> tuple[PoolGroup, ...]:
    """The scheduler's groups of a model with these pages."""
    return tuple(
        PoolGroup(group.name, count, group.window_tokens) for group, count in zip(model.groups, pages, strict=True)
    )


def capacity_tokens(config: EngineConfig, model: ModelFacts, pages: Sequence[int]) -> int:
    """Tokens of the longest sequence that the pages can hold."""
    limits = SchedulerLimits(
        groups=pool_groups(model, pages),
        page_tokens=config.page_tokens,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_batch_tokens=config.max_batch_tokens,
        max_prompt_tokens=1,
        max_sequence_tokens=1,
    )
    return limits.capacity_tokens
