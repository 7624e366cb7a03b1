"""An engine under everything at once for a long time: nothing leaks, and every answer is the one it gives alone.

`SOAK_S` is the length in seconds: 60 by default, 3600 for a real soak (`make soak SOAK_S=3600`). The KV pool is small
enough that sequences are preempted. Answers are compared exactly, which needs an engine whose answers do not depend on
batch mates: `SOAK_FLAGS` holds further configuration keys as JSON, by default `{"determinism": "batch_invariant"}`.
On the default path a near-tie may go the other way in another batch, so exactness cannot be asked of it.
"""

import contextlib
import itertools
import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from engine_process import EngineProcess, running_engine
from eventually import eventually
from soak_load import Kind, bad_requests, cases, chat, cut, essence, exchange, kind_of

SOAK_S = float(os.environ.get("SOAK_S", "60"))
SOAK_FLAGS = json.loads(os.environ.get("SOAK_FLAGS", '{"determinism": "batch_invariant", "dtype": "bf16"}'))
pytestmark = [pytest.mark.wire, pytest.mark.timeout(600 + 2 * SOAK_S)]

CLIENTS = 10
SLOTS = 8
KV_BYTES = 64 << 20
MAX_PROMPT_TOKENS = 1000
BACK_S = 5.0
LOOK_S = 0.5
WARM_S = 0.25
"""Share of the time in which caches may still fill."""
NOISE_BYTES = 24 << 20
NOISE_FILES = 2


@dataclass(frozen=True)
class Look:
    """Resident bytes and open files of all processes of the engine at one moment."""

    when_s: float
    resident_bytes: int
    files: int


@dataclass
class Seen:
    """What the clients saw; shared by their threads."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, problem: str = "") -> None:
        """Count one request, and what was wrong with its answer if anything."""
        with self.lock:
            self.counts[what] += 1
            if problem:
                self.wrong.append(f"{what}: {problem}")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    sizes = {"max_running": SLOTS, "max_waiting": 64, "max_batch_tokens": 128, "max_prompt_tokens": MAX_PROMPT_TOKENS}
    flags = {**sizes, "kv_cache_bytes": KV_BYTES, **SOAK_FLAGS}
    with running_engine(tmp_path_factory.mktemp("soak"), **flags) as process:
        yield process


def processes(engine: EngineProcess) -> list[int]:
    """The API process and all its children."""
    children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
    return [engine.process.pid, *map(int, children)]


def look(engine: EngineProcess, began_s: float) -> Look:
    """The engine's memory and files now; a process that ends meanwhile counts as nothing."""
    resident = files = 0
    for pid in processes(engine):
        with contextlib.suppress(OSError):
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            files += len(os.listdir(f"/proc/{pid}/fd"))
    return Look(time.monotonic() - began_s, resident, files)


def one(engine: EngineProcess, number: int, known: dict[str, list[object]], seen: Seen) -> None:
    """Request `number` from beginning to end."""
    chance = Random(f"case {number}")
    kind = kind_of(number)
    name = chance.choice(sorted(known))
    if kind is Kind.CUT:
        phase = cut(engine.port, number, cases()[name])
        seen.note(f"cut in {phase}")
        return
    if kind is Kind.BAD:
        bad = chance.choice(bad_requests())
        status, answer = exchange(engine.port, bad.body, bad.path)
        seen.note("bad", "" if status in bad.statuses else f"{bad.body[:80]!r} got {status}: {answer[:200]!r}")
        return
    status, answer = exchange(engine.port, json.dumps(cases()[name]).encode())
    if status != 200:
        seen.note("whole", f"request {number}, {name}: {status} {answer[:300]!r}")
        return
    got = essence(json.loads(answer))
    seen.note("whole", "" if got == known[name] else f"request {number}, {name}: {got!r} is not {known[name]!r}"[:600])


def soak(engine: EngineProcess, known: dict[str, list[object]]) -> Seen:
    """Keep `CLIENTS` clients busy for `SOAK_S`."""
    seen, numbers, began_s = Seen(), itertools.count(), time.monotonic()

    def client() -> None:
        while time.monotonic() - began_s < SOAK_S and len(seen.wrong) < 5:
            one(engine, next(numbers), known, seen)

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client) for _ in range(CLIENTS)]
        while not all(future.done() for future in running):
            seen.looks.append(look(engine, began_s))
            with contextlib.suppress(TimeoutError):
                running[0].result(timeout=LOOK_S)
        for future in running:
            future.result()
    return seen


def growth_bytes(looks: list[Look]) -> float:
    """How much resident memory grew from the first to the last third of the time after warming up."""
    warm = [entry.resident_bytes for entry in looks if entry.when_s > WARM_S * SOAK_S]
    third = max(1, len(warm) // 3)
    return statistics.median(warm[-third:]) - statistics.median(warm[:third])


def test_nothing_leaks_and_every_answer_is_right(engine: EngineProcess) -> None:
    known: dict[str, list[object]] = {}
    for name, body in cases().items():
        status, answer = exchange(engine.port, json.dumps(body).encode())
        assert status == 200, (name, answer)
        known[name] = essence(json.loads(answer))
    eventually(engine.pages_at_rest, BACK_S, "the engine is at rest before the soak", 0.05)
    before = look(engine, 0.0)
    seen = soak(engine, known)
    print(f"\n{dict(seen.counts)}, memory grew by {growth_bytes(seen.looks) / 1e6:.1f} MB")
    assert not seen.wrong, "\n".join(seen.wrong)
    assert engine.process.poll() is None, engine.log[-2000:]
    eventually(engine.pages_at_rest, BACK_S, "pages, slots and requests are back at the baseline", 0.05)
    assert engine.metrics()['forebay_engine_grammars{state="used"}'] == 0
    eventually(
        lambda: look(engine, 0.0).files <= before.files + NOISE_FILES, BACK_S, f"no more files than {before.files}", 0.1
    )
    assert growth_bytes(seen.looks) < NOISE_BYTES, [entry.resident_bytes for entry in seen.looks]
    assert seen.counts["whole"] >= len(known), seen.counts
    for name, body in cases().items():
        status, answer = exchange(engine.port, json.dumps(body).encode())
        assert (status, essence(json.loads(answer))) == (200, known[name]), name


def test_every_slot_can_be_used_after_the_soak(engine: EngineProcess) -> None:
    body = json.dumps(chat("Tell me a long story.", 200, ignore_eos=True)).encode()
    with ThreadPoolExecutor(SLOTS) as pool:
        answers = [pool.submit(exchange, engine.port, body) for _ in range(SLOTS)]
        running = "forebay_engine_running_sequences"
        eventually(lambda: engine.metrics()[running] == SLOTS, 30, "every slot is in use at once", 0.02)
        assert {answer.result()[0] for answer in answers} == {200}
    eventually(engine.pages_at_rest, BACK_S, "the slots are free again", 0.05)
