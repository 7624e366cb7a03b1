"""The order of waiting requests: priority, preempted ones first, and a fair share for each tenant."""

from forebay.engine.request import NewRequest, Request, State
from forebay.engine.waiting import FairShare, Tombstones, WaitingQueue
from scheduler_build import Drive, request


def waiting(*items: NewRequest) -> tuple[WaitingQueue, FairShare, list[Request]]:
    """A queue of these requests, in order of arrival."""
    share = FairShare()
    queue = WaitingQueue(share)
    live = [Request(new, arrival) for arrival, new in enumerate(items)]
    for item in live:
        share.enter(item.tenant)
        queue.push(item)
    return queue, share, live


def served_order(queue: WaitingQueue, share: FairShare) -> list[int]:
    """Ids in the order in which they would be admitted, each charged as when admitted."""
    order: list[int] = []
    while (head := queue.head()) is not None:
        order.append(head.id)
        queue.remove(head)
        share.charge(head.tenant, head.charge_tokens)
    return order


def test_a_preempted_request_goes_before_queued_ones_of_its_priority_but_not_of_a_higher() -> None:
    queue, share, (first, *_) = waiting(request(1), request(2), request(3, priority=1))
    queue.remove(first)
    first.state = State.PREEMPTED
    queue.push_preempted(first)
    assert len(queue) == 3
    assert served_order(queue, share) == [3, 1, 2]


def test_preempted_requests_resume_by_priority_and_arrival() -> None:
    queue, share, live = waiting(request(1), request(2), request(3, priority=1))
    for item in (live[1], live[2], live[0]):
        queue.remove(item)
        item.state = State.PREEMPTED
        queue.push_preempted(item)
    assert served_order(queue, share) == [3, 1, 2]


def test_tenants_take_turns_by_tokens_not_by_requests() -> None:
    large = [request(n, range(30), tenant="large") for n in (1, 2)]
    small = [request(n, range(4), tenant="small") for n in (3, 4, 5, 6)]
    queue, share, _ = waiting(*large, *small)
    assert served_order(queue, share) == [1, 3, 4, 5, 6, 2]


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    share = FairShare()
    share.enter("busy")
    share.charge("busy", 100)
    share.enter("new")
    assert share.served("new") == 100
    share.leave("busy")
    share.leave("new")
    assert len(share) == 0


def test_a_request_that_ends_early_gives_back_what_it_did_not_use() -> None:
    drive = Drive()
    drive.add(request(1, max_new_tokens=100, tenant="a"))
    drive.add(request(2, max_new_tokens=20, tenant="a"))
    drive.step()
    share = drive.scheduler._share
    assert share.served("a") == 110 + 30
    drive.abort(1)
    assert share.served("a") == 11 + 30


def test_a_tombstone_put_twice_lives_on_from_the_second_time() -> None:
    tombs = Tombstones(limit=2, life_s=10.0)
    tombs.put(1, 0.0)
    tombs.put(2, 1.0)
    tombs.put(1, 5.0)
    assert len(tombs) == 2
    assert not tombs.take(2, 12.0)
    assert tombs.take(1, 12.0)
    assert not tombs.take(1, 12.0)
