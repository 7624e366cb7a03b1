"""Real weights, real text: greedy tokens equal transformers' on 20 prompts of 64 tokens.

In fp32 every token is equal: alone, and in mixed batches with chunked prefill and reused prefixes. The oracle reads
prompt and answer in one pass: when its best token at every position is the one we generated, its own greedy text is
ours, by induction, at a fraction of the cost of decoding (one prompt is decoded as well). In bf16 the comparison is
by probability: rounding can flip a near-tie, after which two texts differ for good, so each position is judged alone.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from forebay.engine.limits import PoolGroup, SchedulerLimits
from forebay.engine.loader.checkpoint import read_config, read_tokenizer
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.request import NewRequest
from forebay.engine.runner.compute import Compute, choose_compute, cpu_features, parse_cpuinfo
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from forebay.engine.runner.runner import LaunchedStep, StepRunner
from forebay.engine.scheduler import Scheduler
from model_build import GREEDY, PAGE_TOKENS, Sequences, runner_for
from smollm2 import smollm2_directory, smollm2_gguf

pytestmark = pytest.mark.timeout(900)
NEW_TOKENS = 64
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colors.",
    "Explain gravity to a child in two sentences.",
    "Write a haiku about the sea.",
    "What is 7 times 8?",
    "Translate 'good morning' into Spanish.",
    "List the planets of the solar system.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What is photosynthesis?",
    "Summarize the plot of Cinderella.",
    "How do I boil an egg?",
    "What are the benefits of exercise?",
    "Tell me a joke about computers.",
]
PLAIN = [
    "Once upon a time, in a small village at the edge of a dark forest, there lived",
    "The history of the steam engine begins with",
    "def fibonacci(n):\n    ",
    " ".join(["The quick brown fox jumps over the lazy dog."] * 20),
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_str(read_tokenizer(smollm2_gguf()).tokenizer_json)
    chats = [f"{SYSTEM}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS]
    return [tokenizer.encode(text).ids for text in chats + PLAIN]


@pytest.fixture(scope="module")
def oracle() -> Any:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds of imports that only this fixture needs

    torch.set_num_threads(2)
    return AutoModelForCausalLM.from_pretrained(smollm2_directory(), dtype=torch.float32).eval()


def assert_greedy(oracle: Any, prompt: list[int], answer: list[int]) -> None:
    """Fail unless `answer` is what transformers generates greedily after `prompt`."""
    with torch.inference_mode():
        logits = oracle(torch.tensor([prompt + answer[:-1]]), logits_to_keep=len(answer)).logits[0]
    assert len(answer) == NEW_TOKENS
    assert logits.argmax(-1).tolist() == answer


@pytest.fixture(scope="module")
def runner() -> Iterator[StepRunner]:
    runner = runner_for(smollm2_gguf(), "fp32", pages=400)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def answers(prompts: list[list[int]], runner: StepRunner) -> list[list[int]]:
    """Our greedy continuation of each prompt, one at a time."""
    found = []
    for prompt in prompts:
        sequences = Sequences(runner, pages=400)
        sequences.add(0, prompt)
        sequences.advance({0: len(prompt)})
        sequences.generate([0], NEW_TOKENS - 1)
        found.append(sequences.by_slot[0].tokens[len(prompt) :])
    return found


def test_alone_every_token_equals_transformers(prompts: list[list[int]], answers: list[list[int]], oracle: Any) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_greedy(oracle, prompt, answer)


def test_the_oracle_decodes_what_it_reads(prompts: list[list[int]], answers: list[list[int]], oracle: Any) -> None:
    for index in (0, 18):
        prompt = torch.tensor([prompts[index]])
        generated = oracle.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
        assert generated[0, len(prompts[index]) :].tolist() == answers[index]


def test_in_mixed_batches_every_token_is_the_same(
    prompts: list[list[int]], answers: list[list[int]], runner: StepRunner
) -> None:
    """Through the real scheduler: two steps in flight, prefill in chunks, reused prefixes, too few pages for all."""
    limits = SchedulerLimits(
        groups=(PoolGroup("full", 50),),
        page_tokens=PAGE_TOKENS,
        max_running=20,
        max_waiting=20,
        max_batch_tokens=48,
        max_prompt_tokens=700,
        max_sequence_tokens=780,
    )
    scheduler = Scheduler(limits, b"parity")
    found = _generate(scheduler, runner, prompts, new_request_every_steps=3)
    assert found == answers
    load = scheduler.load()
    shared = next(i for i, column in enumerate(zip(*prompts[:16], strict=False)) if len(set(column)) > 1)
    assert shared % PAGE_TOKENS > 0
    assert load.reused_tokens > 8 * shared
    assert load.preemptions > 0
    assert max(len(prompt) for prompt in prompts) > limits.max_batch_tokens
    assert load.steps < NEW_TOKENS * len(prompts) / 4


def _generate(
    scheduler: Scheduler, runner: StepRunner, prompts: list[list[int]], new_request_every_steps: int
) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in prompts]
    in_flight: deque[LaunchedStep] = deque()
    added, turn = 0, 0
    while added < len(prompts) or not scheduler.idle:
        if added < len(prompts) and turn % new_request_every_steps == 0:
            scheduler.add(_request(added, prompts[added]), now_s=0.0)
            added += 1
        turn += 1
        plan = scheduler.plan()
        if plan is not None:
            in_flight.append(runner.launch(plan))
        if plan is None or len(in_flight) == 2:
            _commit_oldest(scheduler, in_flight, found)
    return found


def _commit_oldest(scheduler: Scheduler, in_flight: "deque[LaunchedStep]", found: list[list[int]]) -> None:
    if not in_flight:
        return
    events = scheduler.commit(in_flight.popleft().result(), now_s=0.0)
    for request_id, token in zip(events.request_ids, events.tokens, strict=True):
        found[request_id].append(token)


def _request(index: int, prompt: list[int]) -> NewRequest:
    return NewRequest(
        request_id=index,
        prompt=tuple(prompt),
        sampling=GREEDY,
        max_new_tokens=NEW_TOKENS,
        stop_token_ids=frozenset(),
        ignore_eos=True,
        tenant="",
        priority=0,
        deadline_s=float("inf"),
    )


BF16_KL = 0.005
"""Largest mean divergence per token, in nats, between bf16 and fp32 next-token distributions."""
BF16_AGREEMENT = 0.98
"""Least share of positions where bf16 picks the fp32 token."""


@pytest.mark.parametrize("hardware", [True, False], ids=["bf16 products", "fp32 products"])
def test_bf16_stays_within_its_stated_tolerance(
    prompts: list[list[int]], answers: list[list[int]], hardware: bool
) -> None:
    texts = list(zip(prompts, answers, strict=True))[::4]
    exact = _next_token_logits(texts, choose_compute("fp32", cpu_features()))
    flags = "avx512_bf16" if hardware else "avx2"
    rounded = _next_token_logits(texts, choose_compute("bf16", parse_cpuinfo(f"flags: {flags}")))
    expected, got = exact.log_softmax(-1), rounded.log_softmax(-1)
    divergence = (expected.exp() * (expected - got)).sum(-1)
    agreement = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    print(f"bf16: mean divergence {float(divergence.mean()):.5f} nats, agreement {float(agreement):.4f}")
    assert float(divergence.mean()) < BF16_KL
    assert float(agreement) > BF16_AGREEMENT
    assert float(divergence.mean()) > 0


def _next_token_logits(texts: list[tuple[list[int], list[int]]], compute: Compute) -> torch.Tensor:
    """fp32 logits [rows, vocab] at every generated position of `texts` (prompt, answer)."""
    path = smollm2_gguf()
    executor = build_torch_executor(path, read_config(path), compute, ExecutorSizes((40,), PAGE_TOKENS, 1, 700, 2))
    logits = []
    for prompt, answer in texts:
        tokens = np.array(prompt + answer[:-1])
        inputs = StepInputs(
            tokens=tokens,
            positions=np.arange(len(tokens)),
            starts=np.array([0]),
            counts=np.array([len(tokens)]),
            tables=(np.arange(-(-len(tokens) // PAGE_TOKENS), dtype=np.int32)[None],),
            sampled=np.arange(len(prompt) - 1, len(tokens)),
        )
        logits.append(executor.logits(inputs))
    return torch.cat(logits)
