"""One request that generates, on its way: prompts to tokens, tokens to sequences, sequences to answers.

Holds: however the caller leaves, the group aborts what still runs. An answer cut at a stop string gives its text at
once, and its sequence's last counts follow, so that usage is right. Shapes are the handlers' business. Used by
`generate.py` for every generating endpoint.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.contract.errors import InvalidRequest
from forebay.engine.messages import Add, Load
from forebay.engine.record import BatchPlan, Candidate, make_record
from forebay.engine.request import Retention
from forebay.engine.server.answers import Answer, Usage, summed
from forebay.engine.server.choices import Choice, Delta
from forebay.engine.server.core_client import Group
from forebay.engine.server.openai import GenerateRequest
from forebay.engine.server.service import LoadedText, Service, check_length
from forebay.engine.server.shapes import AfterReasoning, Calls, Document, Shape
from forebay.engine.server.watch import Watch
from forebay.engine.structured.reasoning import reasoning_end

REASONING_TAIL_TOKENS = 32
_SEEDS = 1 << 64


@dataclass(slots=True)
class Exchange:
    """One request and all that is known of it; `failure` is the outcome of a stream that was cut."""

    service: Service
    watch: Watch
    text: LoadedText
    body: dict[str, Any] = field(default_factory=dict)
    prompts: list[list[int]] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    last_token_s: float = 0.0
    failure: str = ""
    reasoning_end: tuple[int, ...] = ()
    load_at_start: Load | None = None

    async def prepare(self, parsed: GenerateRequest) -> None:
        """Encode the prompts and check all lengths; raises `InvalidRequest` naming the field."""
        self.watch.phase = "prepare"
        for prompt in parsed.prompts:
            tokens = await self.service.encode(prompt, parsed.tools)
            budget = check_length(
                len(tokens), parsed.prompt_field, parsed.max_tokens, parsed.max_tokens_field, self.text.limits
            )
            if parsed.sampling.min_tokens > budget:
                raise InvalidRequest(
                    f"min_tokens: {parsed.sampling.min_tokens} is more than the {budget} tokens an answer may have",
                    param="min_tokens",
                )
            self.watch.client.charge(len(tokens), self.service.clock.monotonic_s())
            self.watch.prompt_tokens += len(tokens)
            self.prompts.append(tokens)
            self.budgets.append(budget)

    @asynccontextmanager
    async def grammar(self, parsed: GenerateRequest) -> AsyncIterator[str]:
        """The key of the request's compiled grammar while the request lives; empty for free text."""
        if parsed.structured is None:
            yield ""
            return
        source = parsed.structured.source
        if self.service.grammars is None:
            raise InvalidRequest(f"{source.param}: the model names no end-of-text token", param=source.param)
        codec = self.text.codec
        if parsed.prompt_field != "prompt":
            tail = codec.decode_all(self.prompts[0][-REASONING_TAIL_TOKENS:])
            self.reasoning_end = reasoning_end(codec.template_source, tail, codec.encode_plain)
        async with self.service.grammars.use(source, self.reasoning_end) as key:
            yield key

    def _shape(self, parsed: GenerateRequest) -> Shape | None:
        if parsed.structured is None:
            return None
        if parsed.tools:
            shape: Shape = Calls(self.service.call_id, free_text=parsed.structured.free_text)
        else:
            shape = Document(is_json=parsed.structured.is_json)
        return AfterReasoning(shape) if self.reasoning_end else shape

    def submit(self, group: Group, parsed: GenerateRequest, grammar: str) -> None:
        """One sequence for each prompt and candidate; candidate i samples with the request's seed plus i."""
        self.watch.phase = "waiting"
        self.load_at_start = self.service.client.load
        service = self.service
        first_seed = service.seed() if parsed.seed is None else parsed.seed
        self.seeds = [(first_seed + candidate) % _SEEDS for candidate in range(parsed.best_of)]
        config = service.config
        seconds = config.structured_max_seconds if grammar else config.max_seconds
        most = config.structured_max_tokens if grammar else config.max_tokens
        eos = () if parsed.stops.ignore_eos else self.text.eos_ids
        for place, (tokens, budget) in enumerate(zip(self.prompts, self.budgets, strict=True)):
            template = Add(
                request_id=0,
                prompt=tuple(tokens),
                sampling=parsed.sampling,
                max_new_tokens=min(budget, most),
                stop_token_ids=(*eos, *parsed.stops.token_ids),
                ignore_eos=False,
                tenant=self.watch.client.name,
                priority=parsed.priority,
                deadline_s=self.watch.began_s + seconds,
                speculation=parsed.speculation,
                retention=_within(parsed.retention, len(tokens)),
                grammar=grammar,
            )
            for candidate, seed in enumerate(self.seeds):
                index = place * parsed.best_of + candidate
                self.choices.append(
                    Choice(index, self.text.codec.detokenizer(), parsed.stops.texts, self._shape(parsed))
                )
                group.submit(index, replace(template, sampling=replace(parsed.sampling, seed=seed)).with_id)

    async def deltas(self, group: Group) -> AsyncIterator[list[Delta]]:
        """Batches of deltas until every choice has ended, and the core has let go of its sequence."""
        choices = self.choices
        open_choices = len(choices)
        while open_choices:
            batch = []
            for progress in await group.next():
                choice = choices[progress.index]
                if progress.tokens:
                    self._note_tokens(len(progress.tokens))
                batch.append(choice.take(progress))
                if choice.ended:
                    open_choices -= 1
                elif batch[-1].outcome is not None:
                    group.stop(progress.index)
            yield batch
        self._note_end()

    def _note_tokens(self, count: int) -> None:
        now_s = self.service.clock.monotonic_s()
        metrics = self.service.metrics
        metrics.generated_tokens.inc(by=count)
        self.watch.client.charge(count, now_s)
        self.watch.output_tokens += count
        if self.last_token_s == 0.0:
            self.watch.phase = "streaming"
            metrics.first_token_s.observe(now_s - self.watch.began_s)
        elif len(self.choices) == 1:
            metrics.token_gap_s.observe((now_s - self.last_token_s) / count)
        self.last_token_s = now_s

    def _note_end(self) -> None:
        metrics = self.service.metrics
        metrics.prompt_tokens.inc(by=sum(map(len, self.prompts)))
        metrics.cached_tokens.inc(by=sum(choice.cached_tokens for choice in self.choices))
        for choice in self.choices:
            if choice.speculation is not None:
                drafted, accepted, steps, _ = choice.speculation
                metrics.drafted.inc(by=drafted)
                metrics.accepted.inc(by=accepted)
                metrics.draft_steps.inc(by=steps)
            if choice.outcome is not None and choice.outcome.is_incomplete:
                metrics.incomplete.inc()

    def usage(self) -> Usage:
        """What the request used, all candidates counted."""
        per_prompt = len(self.choices) // len(self.prompts)
        counts = [choice.speculation for choice in self.choices if choice.speculation is not None]
        return Usage(
            prompt_tokens=sum(map(len, self.prompts)),
            completion_tokens=sum(choice.tokens for choice in self.choices),
            cached_tokens=sum(choice.cached_tokens for choice in self.choices[::per_prompt]),
            speculation=summed(counts) if counts else None,
        )

    async def record(self, path: str, parsed: GenerateRequest) -> dict[str, Any] | None:
        """The reproducibility record when the request asked for one."""
        if not parsed.record:
            return None
        identity = await self.service.identity()
        load, now = self.load_at_start, self.service.client.load
        plan = BatchPlan(
            first_step=load.steps if load else 0,
            last_step=now.steps if now else 0,
            running_at_start=load.running if load else 0,
            waiting_at_start=load.waiting if load else 0,
            cached_tokens=self.usage().cached_tokens,
            max_batch_tokens=self.service.config.max_batch_tokens,
        )
        candidates = [self._candidate(choice, parsed.best_of) for choice in self.choices]
        digest = parsed.structured.source.digest if parsed.structured is not None else ""
        return make_record(identity, (path, self.body), self.prompts, digest, candidates, plan)

    def _candidate(self, choice: Choice, per_prompt: int) -> Candidate:
        place, number = divmod(choice.index, per_prompt)
        reason = choice.outcome.finish_reason if choice.outcome else ""
        stop = choice.outcome.stop_reason if choice.outcome else None
        return Candidate(place, self.seeds[number], tuple(choice.ids), reason, stop)

    def best(self, answers: Sequence[Answer], parsed: GenerateRequest) -> list[Answer]:
        """Of each prompt's candidates the `n` with the highest mean log probability, best first; all when n is all."""
        if parsed.n == parsed.best_of:
            return list(answers)
        chosen: list[Answer] = []
        for place in range(len(self.prompts)):
            group = range(place * parsed.best_of, (place + 1) * parsed.best_of)
            ranked = sorted(group, key=lambda index: (-self.choices[index].mean_logprob, index))
            chosen += [answers[index] for index in ranked[: parsed.n]]
        return chosen


def _within(retention: tuple[Retention, ...], prompt_tokens: int) -> tuple[Retention, ...]:
    """The ranges cut to the prompt."""
    return tuple(replace(one, end=min(one.end, prompt_tokens)) for one in retention if one.start < prompt_tokens)
