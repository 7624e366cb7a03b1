"""The core's compiled grammars by key: built off the step path, copied for each sequence that starts.

A grammar is put once and opened many times. Building runs in one thread and its end is read with `finished`; the API
process adds requests only after that. Bounded by what the API process puts and drops; `MAX_GRAMMARS` is the backstop.
`put`, `drop` and `finished` belong to the core loop, `open` to the runner's thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from forebay.contract.errors import ForebayError
from forebay.engine.structured import llguidance_matcher, xgrammar_matcher
from forebay.engine.structured.after_reasoning import AfterReasoning
from forebay.engine.structured.matcher import GrammarFault, Matcher
from forebay.engine.structured.vocabulary import Vocabulary

MAX_GRAMMARS: Final = 4096
_BACKENDS: Final[dict[str, tuple[Callable[..., Any], Callable[..., Matcher]]]] = {
    "llguidance": (llguidance_matcher.build, llguidance_matcher.open_matcher),
    "xgrammar": (xgrammar_matcher.build, xgrammar_matcher.open_matcher),
}


@dataclass(frozen=True, slots=True)
class _Built:
    backend: str
    compiled: Any
    reasoning_end: tuple[int, ...]


class GrammarStore:
    """Grammars that requests of this core may name. `vocabulary` makes the vocabulary when first needed."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._built: dict[str, _Built] = {}
        self._pending: set[str] = set()
        self._finished: deque[tuple[str, str]] = deque()

    @property
    def building(self) -> bool:
        """Whether an end of a build is still to be read with `finished`."""
        return bool(self._pending or self._finished)

    def put(self, key: str, backend: str, payload: str, reasoning_end: tuple[int, ...] = ()) -> None:
        """Start building a grammar; with `reasoning_end` it applies after those tokens."""
        with self._lock:
            if len(self._built) + len(self._pending) >= MAX_GRAMMARS:
                self._finished.append((key, f"the core holds {MAX_GRAMMARS} grammars already"))
                return
            self._pending.add(key)
        self._builder.submit(self._build, key, backend, payload, reasoning_end)

    def _build(self, key: str, backend: str, payload: str, reasoning_end: tuple[int, ...]) -> None:
        problem = ""
        try:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            built = _Built(backend, _BACKENDS[backend][0](self._vocabulary, payload), reasoning_end)
        except ForebayError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 - a library's failure must end this grammar, not the thread
            problem = f"{backend} failed: {error}"
        with self._lock:
            if key in self._pending:
                self._pending.discard(key)
                if not problem:
                    self._built[key] = built
                self._finished.append((key, problem))

    def finished(self) -> list[tuple[str, str]]:
        """Keys whose building ended since the last call, with the problem or an empty text."""
        with self._lock:
            ended, self._finished = list(self._finished), deque()
        return ended

    def open(self, key: str, stop_ids: Iterable[int] = ()) -> Matcher:
        """A matcher at the start of a grammar; raises `GrammarFault` for a key that is not built."""
        with self._lock:
            built = self._built.get(key)
        if built is None or self._vocabulary is None:
            raise GrammarFault("the compiled grammar is not in this core")
        stops = tuple(stop_ids)
        matcher = _BACKENDS[built.backend][1](built.compiled, self._vocabulary, stops)
        if not built.reasoning_end:
            return matcher
        stops = (*stops, *self._vocabulary.eos_ids)
        return AfterReasoning(matcher, built.reasoning_end, stops, self._vocabulary.size)

    def drop(self, key: str) -> None:
        """Forget a grammar; matchers that are open go on."""
        with self._lock:
            self._pending.discard(key)
            self._built.pop(key, None)

    def close(self) -> None:
        """Stop the builder thread."""
        self._builder.shutdown(wait=False, cancel_futures=True)
