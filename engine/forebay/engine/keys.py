"""The engine's configuration keys: name, type, default, range and meaning of each, and the values as one object.

The only list of keys: flags, the config file, `describe`, the documentation test and `EngineConfig` follow it.
A key without a place in `EngineConfig` (or the other way round) fails the start. Read by `config.py`, which merges
the layers, and by everything that asks for a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key. `kind` is integer, number, string, boolean or list (of strings)."""

    name: str
    kind: str
    default: Any
    description: str
    minimum: float | None = None
    maximum: float | None = None
    values: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The command line flag of this key."""
        return "--" + self.name.replace("_", "-")


_KIB = 1 << 10
_MIB = 1 << 20

_MODEL = (
    Key("model", "string", "", "Path of the model: a .gguf file, a folder with one, or a Hugging Face folder."),
    Key("served_names", "list", (), "Model names that requests may use; empty means the model's file name."),
    Key("dtype", "string", "bf16", "Precision of weights.", values=("bf16", "fp32", "int8", "int4")),
    Key(
        "kernels", "string", "auto", "What computes; auto takes the best this CPU has.", values=("auto", "cpu", "torch")
    ),
    Key(
        "determinism",
        "string",
        "default",
        "batch_invariant: logits of a request are bit-equal in any batch.",
        values=("default", "batch_invariant"),
    ),
    Key("threads", "integer", 0, "Compute threads; 0 takes the CPUs of the cgroup.", 0, 1024),
)
_CACHE = (
    Key("kv_cache_bytes", "integer", 0, "Bytes of the KV cache; 0 sizes it from the memory limit.", 0, 1 << 46),
    Key(
        "kv_window_share",
        "number",
        0.0,
        "Share of the KV cache for sliding-window layers; 0 follows what requests of middle length need.",
        0.0,
        0.95,
    ),
    Key("page_tokens", "integer", 16, "Tokens in one KV page; a multiple of 16 for the cpu kernels.", 8, 256),
    Key("prefix_reuse", "boolean", True, "Share KV pages between requests that begin with the same tokens."),
    Key(
        "admission",
        "string",
        "max_utilization",
        "When a request may start: pages for now (may preempt), or pages to its end promised (never preempts).",
        values=("max_utilization", "guaranteed_no_evict"),
    ),
    Key("max_running", "integer", 32, "Requests that run at the same time.", 1, 1024),
    Key("max_waiting", "integer", 256, "Requests that may wait; more are answered 429.", 1, 100_000),
    Key("max_batch_tokens", "integer", 512, "Tokens computed in one step; longer prompts run in chunks.", 16, 65_536),
)
_SPECULATION = (
    Key(
        "speculation",
        "string",
        "off",
        "Draft tokens for requests that do not choose themselves.",
        values=("off", "ngram", "draft"),
    ),
    Key("draft_model", "string", "", "Path of a small model with the same tokenizer; allows speculation draft."),
    Key("draft_tokens", "integer", 4, "Most tokens drafted in one step.", 1, 16),
)
_STRUCTURE = (
    Key(
        "structured_backend",
        "string",
        "auto",
        "Library that compiles grammars; auto takes the first that supports the request.",
        values=("auto", "xgrammar", "llguidance"),
    ),
    Key("grammar_seconds", "number", 5.0, "Longest compilation of one grammar; longer is answered 400.", 0.1, 60.0),
    Key("grammar_max_bytes", "integer", 128 * _KIB, "Largest schema or grammar of a request.", 64, 16 * _MIB),
    Key("grammar_cache_bytes", "integer", 64 * _MIB, "Compiled grammars that are kept.", 0, 1 << 32),
    Key("structured_max_tokens", "integer", 0, "Most tokens of a structured answer; 0 means max_tokens.", 0, 1 << 24),
    Key("structured_max_seconds", "number", 0.0, "Longest structured answer; 0 means max_seconds.", 0.0, 86_400.0),
    Key("structured_max_string", "integer", 1024, "Characters of a string whose schema sets no bound.", 1, 65_536),
    Key("structured_max_items", "integer", 64, "Items of an array, and keys of an object, without a bound.", 1, 4096),
    Key("structured_max_whitespace", "integer", 20, "Whitespace characters in a row between JSON tokens.", 0, 64),
)
_LIMITS = (
    Key(
        "max_prompt_tokens", "integer", 0, "Longest prompt; 0 means what the model and the KV cache allow.", 0, 1 << 24
    ),
    Key("max_tokens", "integer", 0, "Most tokens one answer may have; 0 means what fits.", 0, 1 << 24),
    Key("default_max_tokens", "integer", 512, "Answer length when the request names none.", 1, 1 << 24),
    Key("max_seconds", "number", 600.0, "Longest life of a request; it then ends with what it has.", 0.1, 86_400.0),
    Key("max_body_bytes", "integer", 2 * _MIB, "Largest request body; larger is answered 413.", 1024, 256 * _MIB),
    Key("max_n", "integer", 8, "Most answers of one request, prompts times n or best_of.", 1, 128),
    Key("max_stop", "integer", 4, "Most stop strings, and most stop token ids, of one request.", 1, 64),
    Key("max_top_logprobs", "integer", 20, "Most alternatives for each token in logprobs.", 0, 100),
    Key("max_logit_bias", "integer", 1024, "Most entries of logit_bias.", 0, 65_536),
    Key("max_tools", "integer", 128, "Most tools of one request.", 0, 1024),
    Key("record", "string", "on_request", "Reproducibility records in answers.", values=("off", "on_request")),
)
_SERVER = (
    Key("host", "string", "127.0.0.1", "Address to listen on."),
    Key("port", "integer", 8000, "TCP port to listen on.", 1, 65535),
    Key("head_seconds", "number", 20.0, "Time a client has to send a request head.", 0.1, 600.0),
    Key("body_seconds", "number", 60.0, "Time a client has to send a request body.", 0.1, 3600.0),
    Key("write_seconds", "number", 60.0, "Time a client may leave a stream unread before it is cut.", 0.1, 3600.0),
    Key("keepalive_seconds", "number", 75.0, "Time an idle connection stays open.", 1.0, 3600.0),
    Key("stall_seconds", "number", 60.0, "Not ready when work waits this long without a step.", 1.0, 3600.0),
    Key("drain_seconds", "number", 30.0, "Grace of running requests after SIGTERM.", 0.0, 3600.0),
    Key("api_keys_file", "string", "", "JSON file of client name to API key, or to key and limits; empty: no key."),
    Key("log_level", "string", "info", "Least severe log line.", values=("debug", "info", "warning", "error")),
)
KEYS: tuple[Key, ...] = (*_MODEL, *_CACHE, *_SPECULATION, *_STRUCTURE, *_LIMITS, *_SERVER)
KEYS_BY_NAME: Mapping[str, Key] = {key.name: key for key in KEYS}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One value for each key of `KEYS`, before sizes are fitted to the machine and the model."""

    model: str
    served_names: tuple[str, ...]
    dtype: str
    kernels: str
    determinism: str
    threads: int
    kv_cache_bytes: int
    kv_window_share: float
    page_tokens: int
    prefix_reuse: bool
    admission: str
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    speculation: str
    draft_model: str
    draft_tokens: int
    structured_backend: str
    grammar_seconds: float
    grammar_max_bytes: int
    grammar_cache_bytes: int
    structured_max_tokens: int
    structured_max_seconds: float
    structured_max_string: int
    structured_max_items: int
    structured_max_whitespace: int
    max_prompt_tokens: int
    max_tokens: int
    default_max_tokens: int
    max_seconds: float
    max_body_bytes: int
    max_n: int
    max_stop: int
    max_top_logprobs: int
    max_logit_bias: int
    max_tools: int
    record: str
    host: str
    port: int
    head_seconds: float
    body_seconds: float
    write_seconds: float
    keepalive_seconds: float
    stall_seconds: float
    drain_seconds: float
    api_keys_file: str
    log_level: str
