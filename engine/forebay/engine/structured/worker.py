"""The compile process: one grammar at a time, from frames on stdin to frames on stdout.

It may be killed at any moment and holds nothing that matters. It bounds itself too: memory by an address space limit
over what the libraries took, and time by an alarm that ends it when its parent is gone or stuck. Started by
`compiler.py` as `python -m forebay.engine.structured.worker`.
"""

import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from forebay.contract.errors import ForebayError, InvalidRequest
from forebay.engine.structured.compile import compile_source, prepare
from forebay.engine.structured.frames import HEADER, body_length, frame
from forebay.engine.structured.source import GrammarSource
from forebay.engine.structured.vocabulary import Vocabulary

_PAGE: Final = resource.getpagesize()


def read_frame(stream: BinaryIO) -> Any:
    """The next document, or None at the end of the stream."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    return orjson.loads(stream.read(body_length(head)))


def _limit_memory(extra_bytes: int) -> None:
    """Allow the process `extra_bytes` of address space more than it has now."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * _PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, hard))


def _answer(source: GrammarSource, vocabulary: Vocabulary) -> dict[str, Any]:
    try:
        compiled = compile_source(source, vocabulary)
    except InvalidRequest as error:
        return {"problem": error.message, "param": error.param or source.param}
    except (ForebayError, MemoryError, RecursionError, RuntimeError, ValueError) as error:
        return {"problem": f"{source.param}: does not compile: {error or type(error).__name__}", "param": source.param}
    return {"backend": compiled.backend, "payload": compiled.payload}


def main() -> int:
    """Serve until stdin ends. The first frame says which model and which limits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    setup = read_frame(stdin)
    if setup is None:
        return 0
    vocabulary = Vocabulary.of_model(Path(setup["model"]), setup["vocabulary"], tuple(setup["eos_ids"]))
    while (document := read_frame(stdin)) is not None:
        source = GrammarSource.of(document)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        prepare(source, vocabulary)
        stdout.write(frame({"started": True}))
        stdout.flush()
        _limit_memory(setup["memory_bytes"])
        signal.setitimer(signal.ITIMER_REAL, 2 * setup["seconds"] + 1)
        answer = _answer(source, vocabulary)
        signal.setitimer(signal.ITIMER_REAL, 0)
        stdout.write(frame(answer))
        stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
