"""A scheduler and a runner in one loop, as the core has them, without processes: requests in, tokens out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.engine.plan import StepHandle
from forebay.engine.request import Ended, NewRequest
from forebay.engine.runner.runner import StepRunner
from forebay.engine.scheduler import Scheduler


@dataclass
class Answers:
    """Tokens and ends by request id, and how many steps it took."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    steps: int = 0


def serve(
    scheduler: Scheduler, runner: StepRunner, requests: Sequence[NewRequest], steps_between: int = 0, in_flight: int = 2
) -> Answers:
    """Serve `requests`, one more every `steps_between` turns, with up to `in_flight` steps launched at a time."""
    answers = Answers({request.request_id: [] for request in requests})
    waiting, launched = deque(requests), deque[StepHandle]()
    turn = 0
    while waiting or launched or not scheduler.idle:
        _arrive(scheduler, waiting, turn, steps_between)
        turn += 1
        plan = scheduler.plan()
        if plan is not None:
            answers.steps += 1
            launched.append(runner.launch(plan))
        if launched and (len(launched) >= in_flight or plan is None):
            _commit(scheduler, launched.popleft(), answers)
    return answers


def _arrive(scheduler: Scheduler, waiting: deque[NewRequest], turn: int, steps_between: int) -> None:
    while waiting and (not steps_between or turn % steps_between == 0):
        scheduler.add(waiting.popleft(), now_s=0.0)
        if steps_between:
            break


def _commit(scheduler: Scheduler, handle: StepHandle, answers: Answers) -> None:
    result = handle.result()
    assert result.fault is None, result.fault
    events = scheduler.commit(result, now_s=0.0)
    for request_id, token in zip(events.request_ids, events.tokens, strict=True):
        answers.tokens[request_id].append(token)
    answers.ended.update({end.request_id: end for end in events.ended})
