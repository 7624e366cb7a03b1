"""The engine's Prometheus metrics. Every series exists from the first scrape; reading drains nothing.

Counters of the core come with its load reports; the API process counts requests, tokens and times itself.
"""

from forebay.contract.promtext import Histogram, Registry, Scalar
from forebay.engine.messages import Load
from forebay.engine.server.residents import PROCESSES

ENDPOINTS = ("chat", "completions", "responses", "embeddings")
PHASES = ("body", "prepare", "waiting", "streaming")
OUTCOMES = ("stop", "length", "tool_calls", "deadline", "cancelled", "invalid", "overloaded", "unavailable", "error")
_LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class EngineMetrics:
    """All families of one engine process."""

    def __init__(self, version: str, model: str) -> None:
        registry = Registry()
        self._registry = registry
        info = registry.gauge("forebay_engine_info", "Version of the engine.", {"version": (version,)})
        info.set(1.0, version)
        self.ready = registry.gauge("forebay_engine_ready", "1 while /ready answers 200.")
        self.draining = registry.gauge("forebay_engine_draining", "1 while the engine drains.")
        self.requests = registry.counter(
            "forebay_engine_requests_total",
            "Requests by how they ended.",
            {"endpoint": ENDPOINTS, "outcome": OUTCOMES},
        )
        self.cancelled = registry.counter(
            "forebay_engine_cancelled_requests_total", "Requests whose client left, by phase.", {"phase": PHASES}
        )
        self.http_requests = registry.counter(
            "forebay_engine_http_responses_total",
            "HTTP responses of all paths by status class.",
            {"class": ("2xx", "3xx", "4xx", "5xx")},
        )
        self.malformed = registry.counter(
            "forebay_engine_http_malformed_total", "Connections refused before a request could be read."
        )
        self.open_requests = registry.gauge("forebay_engine_open_requests", "Completion requests being answered.")
        self._add_tokens(registry)
        self._add_core(registry)
        self._add_parts(registry)
        self._add_aliases(registry, model)

    def _add_tokens(self, registry: Registry) -> None:
        """What requests used and how long they took."""
        self.prompt_tokens = registry.counter("forebay_engine_prompt_tokens_total", "Prompt tokens of ended requests.")
        self.generated_tokens = registry.counter("forebay_engine_generated_tokens_total", "Tokens generated.")
        self.cached_tokens = registry.counter(
            "forebay_engine_cached_tokens_total", "Prompt tokens taken from the prefix cache."
        )
        self.first_token_s = registry.histogram(
            "forebay_engine_time_to_first_token_seconds", "From request to first token.", _LATENCY_BOUNDS_S
        )
        self.token_gap_s = registry.histogram(
            "forebay_engine_inter_token_seconds", "Time between tokens of one request.", _GAP_BOUNDS_S
        )
        self.request_s = registry.histogram(
            "forebay_engine_request_seconds", "Whole time of a request.", _LATENCY_BOUNDS_S
        )
        self.queue_s = registry.histogram(
            "forebay_engine_queue_seconds", "From the core's queue to the first step of a sequence.", _LATENCY_BOUNDS_S
        )

    def _add_core(self, registry: Registry) -> None:
        """What the core reports of itself."""
        self.resident = registry.gauge(
            "forebay_engine_resident_bytes", "Resident memory of the engine's processes.", {"process": PROCESSES}
        )
        self.load_s = registry.gauge("forebay_engine_model_load_seconds", "Time the model took to load.")
        self.running = registry.gauge("forebay_engine_running_sequences", "Sequences in the batch.")
        self.waiting = registry.gauge("forebay_engine_waiting_sequences", "Sequences that wait for a place.")
        self.pending = registry.gauge("forebay_engine_pending_prefill_tokens", "Known tokens not yet computed.")
        self.pages = registry.gauge(
            "forebay_engine_kv_pages",
            "KV pages by state; free includes cached.",
            {"state": ("used", "held", "free", "cached")},
        )
        self.pages_total = registry.gauge("forebay_engine_kv_pages_capacity", "KV pages in the pool.")
        self.steps = registry.counter("forebay_engine_steps_total", "Steps of the core.")
        self.computed = registry.counter(
            "forebay_engine_computed_tokens_total", "Tokens computed, by phase.", {"phase": ("prefill", "decode")}
        )
        self.reused = registry.counter("forebay_engine_reused_tokens_total", "Tokens reused instead of computed.")
        self.preemptions = registry.counter("forebay_engine_preemptions_total", "Sequences preempted for pages.")

    def _add_parts(self, registry: Registry) -> None:
        """Prefix cache, speculation and structured output."""
        self.prefix = registry.counter(
            "forebay_engine_prefix_lookups_total",
            "Sequences by whether they began with cached pages.",
            {"result": ("hit", "miss")},
        )
        self.kv_use = registry.gauge("forebay_engine_kv_use_ratio", "Share of KV pages in use.")
        self.drafted = registry.counter(
            "forebay_engine_speculation_drafted_tokens_total", "Tokens drafted for ended requests."
        )
        self.accepted = registry.counter(
            "forebay_engine_speculation_accepted_tokens_total", "Drafted tokens that were accepted."
        )
        self.draft_steps = registry.counter(
            "forebay_engine_speculation_steps_total", "Steps of sequences in which tokens were drafted."
        )
        self.grammars = registry.gauge(
            "forebay_engine_grammars", "Compiled grammars in the core.", {"state": ("used", "cached")}
        )
        self.compilations = registry.counter("forebay_engine_grammar_compilations_total", "Grammars compiled.")
        self.compile_s = registry.counter("forebay_engine_grammar_compile_seconds_total", "Time spent compiling them.")
        self.incomplete = registry.counter(
            "forebay_engine_incomplete_answers_total", "Structured answers cut before they were whole."
        )

    def _add_aliases(self, registry: Registry, model: str) -> None:
        """The names that dashboards for vLLM know, for what means the same here."""
        aliases: dict[str, Scalar | Histogram] = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv_use,
            "num_preemptions_total": self.preemptions,
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": self.generated_tokens,
            "prefix_cache_queries_total": self.prompt_tokens,
            "prefix_cache_hits_total": self.cached_tokens,
            "time_to_first_token_seconds": self.first_token_s,
            "inter_token_latency_seconds": self.token_gap_s,
            "e2e_request_latency_seconds": self.request_s,
            "request_queue_time_seconds": self.queue_s,
            "spec_decode_num_drafts_total": self.draft_steps,
            "spec_decode_num_draft_tokens_total": self.drafted,
            "spec_decode_num_accepted_tokens_total": self.accepted,
        }
        for name, family in aliases.items():
            registry.alias(f"vllm:{name}", family, "model_name", model)

    def started(self, queued_s: float, cached_tokens: int) -> None:
        """A sequence runs for the first time."""
        self.queue_s.observe(queued_s)
        self.prefix.inc("hit" if cached_tokens else "miss")

    def ended(self, endpoint: str, outcome: str, phase: str, seconds: float) -> None:
        """A request has ended, `seconds` after its head was read."""
        self.requests.inc(endpoint, outcome)
        self.request_s.observe(seconds)
        if outcome == "cancelled":
            self.cancelled.inc(phase)

    def take_load(self, load: Load) -> None:
        """Copy the core's numbers; its counters only rise, so they are set as they are."""
        self.running.set(load.running)
        self.waiting.set(load.waiting)
        self.pending.set(load.pending_prefill_tokens)
        self.pages.set(load.pages_used, "used")
        self.pages.set(load.pages_held, "held")
        self.pages.set(load.pages_total - load.pages_used - load.pages_held, "free")
        self.pages.set(load.pages_cached, "cached")
        self.pages_total.set(load.pages_total)
        self.kv_use.set((load.pages_used + load.pages_held) / max(1, load.pages_total))
        self.steps.set(load.steps)
        self.computed.set(load.prefill_tokens, "prefill")
        self.computed.set(load.decode_tokens, "decode")
        self.reused.set(load.reused_tokens)
        self.preemptions.set(load.preemptions)

    def render(self) -> str:
        """The exposition text."""
        return self._registry.render()
