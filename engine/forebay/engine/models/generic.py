"""Runs a transformers model, unmodified, over our paged attention.

All sequences of a step are packed in one row [1, n] with their positions. The library's attention layers call
`GenericExecutor._attend`, which writes keys and values to our pages and attends per request; its own cache and masks
are off. Loading ends with a probe step that proves that every layer came through, once, with the heads and window that
the configuration promised: what does not fit is refused before it can be wrong.
"""

import inspect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from forebay.contract.errors import InvalidSpec
from forebay.engine.attention.batch import AttentionBatch, PageView, build_batch
from forebay.engine.attention.paged import PagedCache, paged_attention
from forebay.engine.loader.metadata import FIELD, ModelConfig
from forebay.engine.models.torch_weights import TORCH_DTYPES
from forebay.engine.runner.compute import Compute
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from forebay.kernels.paged_attention import Scoring

_APPLIED: Final = ("scaling", "softcap", "sliding_window", "s_aux")
_HARMLESS: Final = (
    "dropout",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "use_cache",
)
_KNOWN: Final = frozenset((*_APPLIED, *_HARMLESS))
"""Arguments of the library's attention call that are applied, or do not change which positions are seen and how."""
_numbers = itertools.count()


class GenericExecutor:
    """`Executor` over a transformers causal language model with plain layer types."""

    def __init__(self, path: Path, config: ModelConfig, compute: Compute, sizes: ExecutorSizes) -> None:
        """Load the model and allocate the pools; `InvalidSpec` when it does not go through our attention."""
        if compute.weights not in TORCH_DTYPES:
            raise InvalidSpec(
                f"precision {compute.weights} is not supported for {config.architecture}, which runs through "
                "transformers; use bf16 or fp32",
                field="dtype",
            )
        self.vocab = config.vocab
        self.dtype = TORCH_DTYPES[compute.matmul]
        self._config = config
        self._groups = config.layer_groups
        self._group_of = {layer: place for place, group in enumerate(self._groups) for layer in group.layers}
        self._batches: list[AttentionBatch] = []
        self._is_probing = True
        self._seen: list[int] = []
        self._model = self._load(path, TORCH_DTYPES[compute.values])
        self._picks_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._cache = PagedCache(
            self._groups, (config.kv_heads, config.head_dim), sizes.pages, sizes.page_tokens, TORCH_DTYPES[compute.kv]
        )
        self._probe(path)
        self._is_probing = False

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """See `Executor.copy_rows`."""
        self._cache.copy_rows(group, copies)

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.logits`."""
        sampled = torch.from_numpy(inputs.sampled)
        picked = {"logits_to_keep": sampled} if self._picks_rows else {}
        logits: torch.Tensor = self._forward(self._model, inputs, **picked).logits[0]
        return (logits if self._picks_rows else logits[sampled]).float()

    @torch.inference_mode()
    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.hidden`."""
        states: torch.Tensor = self._forward(self._model.base_model, inputs).last_hidden_state[0]
        return states[torch.from_numpy(inputs.sampled)].float()

    def _load(self, path: Path, values: torch.dtype) -> Any:
        from transformers import AttentionInterface, AutoModelForCausalLM  # noqa: PLC0415 - optional dependency
        from transformers.utils import logging  # noqa: PLC0415

        # A name of its own: a draft model may be a second executor of this kind in the same process.
        name = f"forebay_paged_{next(_numbers)}"
        AttentionInterface.register(name, self._attend)
        logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=values,
                attn_implementation=name,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (OSError, ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
            raise InvalidSpec(f"{path}: transformers cannot load it: {error}", field=FIELD) from error
        return model.eval().to(self.dtype)

    def _forward(self, module: Any, inputs: StepInputs, **options: Any) -> Any:
        view = [PageView(self._cache.page_tokens, group.window_tokens, self.dtype) for group in self._groups]
        self._batches = [
            build_batch(inputs.starts, inputs.counts, table, group_view)
            for table, group_view in zip(inputs.tables, view, strict=True)
        ]
        return module(
            input_ids=torch.from_numpy(inputs.tokens)[None],
            position_ids=torch.from_numpy(inputs.positions)[None],
            use_cache=False,
            **options,
        )

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """The library's attention call: query [1, heads, n, dim], key and value [1, kv_heads, n, dim]."""
        layer, window = int(module.layer_idx), options.get("sliding_window")
        unknown = [name for name, option in options.items() if option is not None and name not in _KNOWN]
        self._check_call(layer, unknown, attention_mask, window, getattr(module, "is_causal", True))
        if self._is_probing:
            self._seen.append(layer)
        head_dim, value_dim = query.shape[-1], value.shape[-1]
        queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if value_dim < head_dim:
            values = functional.pad(values, (0, head_dim - value_dim))
        scoring = Scoring(
            scale=options.get("scaling") or head_dim**-0.5,
            softcap=options.get("softcap") or 0.0,
            sinks=options.get("s_aux"),
        )
        batch = self._batches[self._group_of[layer]]
        mixed = paged_attention(self._cache, layer, queries, keys, values, batch, scoring)
        return mixed.view(1, len(mixed), -1, head_dim)[..., :value_dim], None

    def _check_call(
        self, layer: int, unknown: Sequence[str], mask: torch.Tensor | None, window: int | None, is_causal: bool
    ) -> None:
        ours = self._groups[self._group_of[layer]].window_tokens if layer in self._group_of else 0
        problems = {
            f"an attention argument {', '.join(unknown)} that the generic path does not know": unknown,
            "a mask of its own": mask is not None,
            "attention that is not causal": not is_causal,
            f"a window of {window} tokens where the configuration has {ours or 'none'}": window and window != ours,
            f"a layer {layer} that the configuration does not have": layer not in self._group_of,
        }
        for what, is_problem in problems.items():
            if is_problem:
                raise InvalidSpec(f"{self._config.architecture} has {what}; it cannot be served", field=FIELD)

    def _probe(self, path: Path) -> None:
        """Two tokens on page 0, which no sequence owns yet."""
        pair = np.arange(2)
        table = np.zeros((1, 1), dtype=np.int32)
        inputs = StepInputs(
            np.zeros(2, dtype=np.int64), pair, pair[:1], pair[1:] * 2, (table,) * len(self._groups), pair[1:]
        )
        try:
            logits = self.logits(inputs)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise InvalidSpec(
                f"{path}: {self._config.architecture} does not run through paged attention: {error}", field=FIELD
            ) from error
        if sorted(self._seen) != list(range(self._config.layers)):
            raise InvalidSpec(
                f"{path}: {self._config.architecture} took layers {sorted(self._seen)} of {self._config.layers} "
                "through the attention interface; it cannot be served",
                field=FIELD,
            )
        if logits.shape != (1, self.vocab):
            raise InvalidSpec(f"{path}: logits are {list(logits.shape)}, not [1, {self.vocab}]", field=FIELD)
