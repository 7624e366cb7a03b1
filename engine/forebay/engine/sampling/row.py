"""How one sequence picks its tokens: everything of a request that changes a row of logits, and its state.

Order: repetition penalty on the model's logits, presence and frequency penalties, bias, then the masks (grammar, stop
tokens before `min_tokens`), then what `draw.py` says; temperature 0 takes the largest, of equals the lowest id. A row
is rebuilt from the tokens generated so far by `accept`ing them again. `choose` changes nothing, so the rejected part
of a draft leaves no trace. Owned by the runner's slot table.
"""

from collections.abc import Sequence

import numpy as np

from forebay.engine.plan import TokenLogprobs
from forebay.engine.request import SamplingParams
from forebay.engine.sampling.draw import draw
from forebay.engine.sampling.largest import FloatArray
from forebay.engine.sampling.logprobs import token_logprobs
from forebay.engine.sampling.masks import empty_mask, forbid, mask_of
from forebay.engine.sampling.penalties import TokenCounts, needs_counts
from forebay.engine.structured.matcher import GrammarFault, MaskWords, Matcher


class Row:
    """One sequence's sampling parameters, penalty counts, bias, stop tokens and grammar.

    A stop token ends the grammar: nothing is constrained or counted after it, for its request has ended.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        stop_ids: frozenset[int],
        vocab: int,
        matcher: Matcher | None = None,
    ) -> None:
        self.params = params
        self.stop_ids = stop_ids
        self._vocab = vocab
        self._matcher = matcher
        self._generated = 0
        self._ended = False
        self._counts = TokenCounts(prompt, vocab) if needs_counts(params) else None
        bias = [(token, value) for token, value in params.logit_bias if 0 <= token < vocab]
        self._bias_ids = np.array([token for token, _ in bias], dtype=np.int64)
        self._bias = np.array([value for _, value in bias], dtype=np.float32)
        self._stop_ids = np.array(sorted(token for token in stop_ids if 0 <= token < vocab), dtype=np.int64)
        self._stop_mask = mask_of(stop_ids, vocab) if matcher is not None else empty_mask(0)
        self._mask = empty_mask(vocab) if matcher is not None else empty_mask(0)

    @property
    def greedy_only(self) -> bool:
        """Whether the row is, for good, the largest of the model's own logits and nothing more."""
        params = self.params
        adjusts = self._counts is not None or self._matcher is not None or params.logit_bias or params.min_tokens
        return params.temperature == 0 and params.top_logprobs is None and not adjusts

    def accept(self, token: int) -> None:
        """Take `token` as the sequence's next. Raises `GrammarFault` when its grammar does not know it."""
        self._generated += 1
        if self._ended:
            return
        if token in self.stop_ids:
            self._ended = True
            return
        if self._counts is not None:
            self._counts.add(token)
        if self._matcher is not None and not self._matcher.accept(token):
            raise GrammarFault(f"the grammar does not allow token {token}")

    def legal_prefix(self, drafts: Sequence[int]) -> int:
        """How many of `drafts` could be chosen one after the other: known, no stop token, allowed by the grammar."""
        count = 0
        while count < len(drafts) and 0 <= drafts[count] < self._vocab and drafts[count] not in self.stop_ids:
            if self._matcher is not None and not self._matcher.accept(drafts[count]):
                break
            count += 1
        if self._matcher is not None and count:
            self._matcher.rollback(count)
        return count

    def choose(self, logits: FloatArray, number: float, scratch: FloatArray) -> tuple[int, TokenLogprobs | None]:
        """The next token for the model's `logits` [vocab] and the noise `number` in (0, 1), with log probabilities.

        `scratch` [vocab] is overwritten, `logits` is not. Raises `GrammarFault` when no token may come.
        """
        params = self.params
        token = self._greedy_by_grammar(logits)
        if token is None:
            adjusted = logits if self._ended else self._adjusted(logits, scratch)
            token = draw(adjusted, params, number) if params.temperature > 0 else int(adjusted.argmax())
        top = params.top_logprobs
        return token, None if top is None else token_logprobs(logits, token, top)

    def _greedy_by_grammar(self, logits: FloatArray) -> int | None:
        """The likeliest token when only a grammar restricts a greedy row and allows it: no mask can change that."""
        matcher = self._matcher
        waits = self._generated < self.params.min_tokens
        if matcher is None or self.params.temperature > 0 or self._ended or waits:
            return None
        if self._counts is not None or len(self._bias_ids):
            return None
        token = int(logits.argmax())
        if not matcher.accept(token):
            return None
        matcher.rollback(1)
        return token if token not in self.stop_ids or matcher.complete else None

    def _adjusted(self, logits: FloatArray, scratch: FloatArray) -> FloatArray:
        waits = self._generated < self.params.min_tokens and len(self._stop_ids) > 0
        if self._counts is None and self._matcher is None and not len(self._bias_ids) and not waits:
            return logits
        np.copyto(scratch, logits)
        if self._counts is not None:
            self._counts.penalise(scratch, self.params)
        if len(self._bias_ids):
            # Not `+=`: a token listed twice gets both.
            np.add.at(scratch, self._bias_ids, self._bias)
        if self._matcher is not None:
            forbid(scratch, self._grammar_mask(self._matcher, waits))
        elif waits and len(self._stop_ids) < self._vocab:
            scratch[self._stop_ids] = -np.inf
        return scratch

    def _grammar_mask(self, matcher: Matcher, waits: bool) -> MaskWords:
        """What may come: stop tokens when the grammar is complete, but before `min_tokens` only if nothing else may."""
        matcher.fill(self._mask)
        others = self._mask & ~self._stop_mask
        may_stop = matcher.complete and not (waits and others.any())
        allowed = self._mask | self._stop_mask if may_stop else others
        if not allowed.any():
            raise GrammarFault("the grammar allows no token")
        return allowed
