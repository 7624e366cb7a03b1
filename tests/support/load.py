"""A constant load of small chat requests by the official client, from several threads, and what came of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from openai import OpenAI, OpenAIError


@dataclass(slots=True)
class LoadResult:
    """What the load has seen so far; `failures` holds one text for each failed request."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    endpoints: Counter[str] = field(default_factory=Counter)
    revisions: Counter[str] = field(default_factory=Counter)


def _ask_until(stop: threading.Event, base_url: str, model: str, result: LoadResult, lock: threading.Lock) -> None:
    client = OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=120)
    while not stop.is_set():
        try:
            raw = client.chat.completions.with_raw_response.create(
                model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
            )
            text = raw.parse().choices[0].message.content
            problem = "" if text else "the answer is empty"
        except OpenAIError as error:
            problem = f"{type(error).__name__}: {error}"
        with lock:
            if problem:
                result.failures.append(problem)
            else:
                result.answered += 1
                result.endpoints[raw.headers.get("x-forebay-endpoint", "")] += 1
                result.revisions[raw.headers.get("x-forebay-revision", "")] += 1


@contextmanager
def constant_load(base_url: str, model: str, clients: int = 3) -> Iterator[LoadResult]:
    """Keep `clients` requests in flight while the block runs; the last ones finish before the block is left."""
    result, stop, lock = LoadResult(), threading.Event(), threading.Lock()
    threads = [
        threading.Thread(target=_ask_until, args=(stop, base_url, model, result, lock), daemon=True)
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=150)
