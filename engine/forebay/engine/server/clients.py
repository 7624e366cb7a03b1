"""API clients by key, each with its own limits on requests, tokens and concurrency. Pure but for reading the file.

A limit is a bucket that refills steadily. Tokens are charged when they are known, so a bucket may be overdrawn once
and then refuses until it is filled again; what is refused names the limit and when to come back. A client's name is
also its tenant: its own prefix cache and its own fair share. Without a file there is one client without a name.
"""

import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec, Overloaded

_FIELD = "api_keys_file"
_LIMITS = ("requests", "tokens_per_minute", "max_running")
_MINUTE_S = 60.0
_BUSY_RETRY_S = 1.0
MAX_LIMIT = 1 << 40


class LimitReached(Overloaded):
    """A client has used up one of its own limits."""

    code = "rate_limit_exceeded"


class Bucket:
    """`per_minute` units that come back steadily; starts full."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self._per_s = per_minute / _MINUTE_S
        self._capacity = float(per_minute)
        self._level = self._capacity
        self._seen_s = now_s

    def wait_s(self, needed: float, now_s: float) -> float:
        """Seconds until `needed` units (no more than the capacity) are there; 0 when they are."""
        self._fill(now_s)
        return max(0.0, (min(needed, self._capacity) - self._level) / self._per_s)

    def take(self, units: float, now_s: float) -> None:
        """Take units, below zero if need be."""
        self._fill(now_s)
        self._level -= units

    def _fill(self, now_s: float) -> None:
        self._level = min(self._capacity, self._level + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s


class Client:
    """One API client and what it has used. A limit of 0 is none."""

    def __init__(self, name: str, limits: Mapping[str, int], now_s: float) -> None:
        self.name = name
        self.running = 0
        self._max_running = limits.get("max_running", 0)
        self._requests = _bucket(limits.get("requests", 0), now_s)
        self._tokens = _bucket(limits.get("tokens_per_minute", 0), now_s)

    @contextmanager
    def request(self, now_s: float) -> Iterator[None]:
        """One request of this client; raises `LimitReached` naming the limit."""
        if self._max_running and self.running >= self._max_running:
            raise LimitReached(
                f"max_running: client {self.name} runs {self.running} requests already", after_s=_BUSY_RETRY_S
            )
        for name, bucket in (("requests", self._requests), ("tokens_per_minute", self._tokens)):
            after_s = bucket.wait_s(1, now_s) if bucket is not None else 0.0
            if after_s > 0:
                raise LimitReached(f"{name}: client {self.name} has used up its limit", after_s=after_s)
        if self._requests is not None:
            self._requests.take(1, now_s)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def charge(self, tokens: int, now_s: float) -> None:
        """Count tokens of a prompt or an answer."""
        if self._tokens is not None:
            self._tokens.take(tokens, now_s)


def _bucket(per_minute: int, now_s: float) -> Bucket | None:
    return Bucket(per_minute, now_s) if per_minute else None


class Clients:
    """All clients of one engine."""

    def __init__(self, entries: Mapping[str, tuple[str, Mapping[str, int]]], now_s: float) -> None:
        self._keys = [(key.encode(), Client(name, limits, now_s)) for name, (key, limits) in entries.items()]
        self._anyone = None if entries else Client("", {}, now_s)

    def find(self, authorization: str) -> Client | None:
        """The client of an Authorization header, None when it has no valid bearer key."""
        if self._anyone is not None:
            return self._anyone
        scheme, _, given = authorization.partition(" ")
        presented = given.strip().encode()
        # Every key is compared, so that the time tells nothing about which one was near.
        found = [client for key, client in self._keys if hmac.compare_digest(key, presented)]
        return found[0] if found and scheme.lower() == "bearer" else None


def read_clients(path: str) -> dict[str, tuple[str, dict[str, int]]]:
    """Client name to key and limits from a JSON file; empty for an empty path. Raises `InvalidSpec`.

    A value is the key, or an object of `key` and any of `requests` (a minute), `tokens_per_minute`, `max_running`.
    """
    if not path:
        return {}
    try:
        document = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _problem(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or not document:
        raise _problem("must hold an object of client name to API key")
    entries = {name: _entry(name, value) for name, value in document.items()}
    keys = [key for key, _ in entries.values()]
    if len(set(keys)) != len(keys):
        raise _problem("two clients have the same key")
    return entries


def _entry(name: str, value: Any) -> tuple[str, dict[str, int]]:
    entry = {"key": value} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str) or not entry["key"]:
        raise _problem(f"client {name!r} needs a key: a text, or an object with key and limits")
    limits: dict[str, int] = {}
    for limit, number in entry.items():
        if limit == "key":
            continue
        if limit not in _LIMITS:
            raise _problem(f"client {name!r} has an unknown limit {limit!r}; known: {', '.join(_LIMITS)}")
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_LIMIT:
            raise _problem(f"client {name!r}: {limit} must be an integer of at least 1")
        limits[limit] = number
    return entry["key"], limits


def _problem(text: str) -> InvalidSpec:
    return InvalidSpec(f"{_FIELD}: {text}", field=_FIELD)
