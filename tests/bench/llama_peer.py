"""llama.cpp beside the engine: runs in the peer's own environment, started by the engine's benchmark.

`serve MODEL THREADS` loads a GGUF file and answers one JSON line for each on standard input: a prompt of token ids is
decoded greedily and the times are measured inside the process, which spares llama.cpp the cost of a server.
`quantize SOURCE TARGET` writes a Q8_0 file.
"""

import ctypes
import importlib
import json
import sys
import time
from typing import Any

CONTEXT_TOKENS = 2048
BATCH_TOKENS = 512


def serve(model: str, threads: int) -> None:
    """Answer questions until standard input ends."""
    library: Any = importlib.import_module("llama_cpp")
    llama = library.Llama(
        model_path=model,
        n_ctx=CONTEXT_TOKENS,
        n_batch=BATCH_TOKENS,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    for line in sys.stdin:
        question = json.loads(line)
        llama.reset()
        began_s = time.perf_counter()
        times_s = []
        for _ in llama.generate(question["prompt"], temp=0.0, repeat_penalty=1.0, reset=True):
            times_s.append(time.perf_counter())
            if len(times_s) == question["output_tokens"]:
                break
        mean_s = (times_s[-1] - times_s[0]) / max(1, len(times_s) - 1)
        print(json.dumps({"first_token_s": times_s[0] - began_s, "inter_token_s": mean_s}), flush=True)


def quantize(source: str, target: str) -> None:
    """Write `source` again as Q8_0."""
    library: Any = importlib.import_module("llama_cpp")
    options = library.llama_model_quantize_default_params()
    options.ftype = library.LLAMA_FTYPE_MOSTLY_Q8_0
    options.allow_requantize = True
    code = library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options))
    if code != 0:
        sys.exit(f"llama.cpp cannot quantize {source}: {code}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        quantize(sys.argv[2], sys.argv[3])
