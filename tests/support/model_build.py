"""Builders for model tests: tiny random checkpoints of every native family and step plans written by hand.

Tiny models are initialised wide (0.15), so that a wrong attention cannot pass within a tolerance. `Sequences` is a
scheduler without policy: a test says which sequence advances by how many tokens and gets the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forebay.engine.loader.checkpoint import read_config
from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan, StepResult
from forebay.engine.request import SamplingParams, SlotStart
from forebay.engine.runner.build import build_runner
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from forebay.engine.runner.runner import StepRunner

PAGE_TOKENS = 16
GREEDY = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, seed=0)


TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"num_hidden_layers": 3}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", EXPERTS),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "sliding_window": 16,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
        },
    ),
}
"""Class in transformers and what differs from `TINY`."""


def save_tiny(family: str, folder: Path, shard_size: str = "50GB", **changes: Any) -> Any:
    """A random fp32 transformers model of a family, also saved to `folder`; returns the transformers model."""
    import transformers  # noqa: PLC0415 - seconds of imports that few tests need

    name, differences = FAMILIES[family]
    model_class = getattr(transformers, name)
    shape = {key: value for key, value in {**TINY, **differences, **changes}.items() if value is not None}
    torch.manual_seed(7)
    model = model_class(model_class.config_class(**shape)).float().eval()
    norm = 0.0 if family == "gemma3" else 1.0
    for parameter_name, parameter in model.named_parameters():
        # Norm weights and biases start as constants, which would hide that one is read wrongly or not at all.
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=norm if "norm" in parameter_name else 0.0, std=0.15)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def save_tiny_llama(folder: Path, shard_size: str = "50GB", **changes: Any) -> Any:
    """`save_tiny` for the family that most tests need."""
    return save_tiny("llama", folder, shard_size, **changes)


def runner_for(path: Path, dtype: str = "fp32", pages: int = 256, max_running: int = 32) -> StepRunner:
    """A runner of the checkpoint at a resolved path, pages of 16 tokens.

    One thread: threads that wait for each other crawl on a busy machine, and small steps gain little from a second.
    """
    compute = choose_compute(dtype, cpu_features())
    return build_runner(
        path, read_config(path), compute, ExecutorSizes((pages,), PAGE_TOKENS, max_running, 1024, threads=1)
    )


@dataclass
class SequenceState:
    """Tokens so far, how many of them are in the KV cache, and the pages that hold them."""

    tokens: list[int]
    sampling: SamplingParams = GREEDY
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    fresh: bool = True
    prompt_tokens: int = 0


class Sequences:
    """Sequences by slot over one runner; `advance` runs one step of chosen token counts."""

    def __init__(self, runner: StepRunner, pages: int = 256) -> None:
        self.runner = runner
        self.by_slot: dict[int, SequenceState] = {}
        self._free_pages = list(range(pages))[::-1]
        self._step = 0

    def add(self, slot: int, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> None:
        """A new sequence in `slot`."""
        self.by_slot[slot] = SequenceState(list(prompt), sampling, prompt_tokens=len(prompt))

    def share_prefix(self, slot: int, source: int, tokens: int) -> tuple[tuple[int, int, int], ...]:
        """Start `slot` on `tokens` cached tokens of `source`: whole pages are shared, the rest is a copy to run."""
        target, origin = self.by_slot[slot], self.by_slot[source]
        whole, rest = divmod(tokens, PAGE_TOKENS)
        target.pages = origin.pages[:whole]
        target.computed = tokens
        if rest == 0:
            return ()
        target.pages.append(self._free_pages.pop())
        return ((origin.pages[whole], target.pages[whole], rest),)

    def plan(self, counts: dict[int, int], copies: tuple[tuple[int, int, int], ...] = ()) -> StepPlan:
        """A plan that computes `counts[slot]` more tokens of each slot; a token not known yet stays on the device."""
        tokens: list[int] = []
        starts, tables, samples, fresh = [], [], [], []
        for slot, count in counts.items():
            row = self.by_slot[slot]
            end = row.computed + count
            while len(row.pages) * PAGE_TOKENS < end:
                row.pages.append(self._free_pages.pop())
            known = row.tokens[row.computed : end]
            tokens += known + [TOKEN_ON_DEVICE] * (count - len(known))
            starts.append(row.computed)
            tables.append(tuple(row.pages[: -(-end // PAGE_TOKENS)]))
            samples.append(end >= len(row.tokens))
            fresh.append(SlotStart(row.sampling, tuple(row.tokens), row.prompt_tokens) if row.fresh else None)
            row.computed, row.fresh = end, False
        self._step += 1
        slots = tuple(counts)
        return StepPlan(
            step=self._step,
            slots=slots,
            epochs=tuple(slot + 100 for slot in slots),
            starts=tuple(starts),
            counts=tuple(counts.values()),
            tokens=tuple(tokens),
            page_tables=(tuple(tables),),
            samples=tuple(samples),
            fresh=tuple(fresh),
            copies=tuple((0, *copy) for copy in copies),
            draft_limits=(0,) * len(slots),
        )

    def advance(self, counts: dict[int, int], copies: tuple[tuple[int, int, int], ...] = ()) -> StepResult:
        """Run one step to its end and append the sampled tokens."""
        result = self.runner.launch(self.plan(counts, copies)).result()
        assert result.fault is None, result.fault
        self.append(result)
        return result

    def append(self, result: StepResult) -> None:
        """Append a result's tokens to their sequences."""
        for slot, token in zip(result.slots, result.tokens, strict=True):
            self.by_slot[slot].tokens.append(token)

    def generate(self, slots: Sequence[int], tokens: int) -> None:
        """Decode `tokens` more tokens of every slot, all in one batch a step."""
        for _ in range(tokens):
            self.advance(dict.fromkeys(slots, 1))
