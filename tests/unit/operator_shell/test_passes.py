"""A whole pass on the fake API server: refusals reach the status once, and errors become the right outcome."""

import random
from typing import Any

import sim_objects
from fake_cluster import FakeCluster
from forebay.contract.errors import ApiDenied, ApiThrottled, Bug, ForebayError, Retry, RetryKind
from forebay.operator.cluster import DEPLOYMENT_KIND, FOREBAY_API, ApplyRefused, Json
from forebay.operator.contention import MAX_APPLYING_PASSES
from forebay.operator.execute import Executor
from forebay.operator.metrics import Metrics
from forebay.operator.observe import Observer
from forebay.operator.queue import Done, Failed, Key, Outcome
from forebay.operator.snapshot import Settings
from forebay.operator.worker import DENIED_RETRY_S, Passes
from sim_network import GOOD, FakeClient, Write
from sim_objects import NAME, NAMESPACE, condition
from virtual_loop import VirtualClock, VirtualLoop, run_virtual

KEY = Key(DEPLOYMENT_KIND, NAMESPACE, NAME)


class NoRouters:
    """There are no router pods."""

    async def read(self, pods: Any) -> tuple[()]:
        """See `RouterReader`."""
        assert not pods
        return ()


class RefusingClient(FakeClient):
    """Answers applies of one kind with an error."""

    refused_kind = ""
    error: ForebayError = Bug("unset")

    async def apply(self, obj: Json, manager: str, *, force: bool) -> Json:
        """See `Cluster`."""
        if obj["kind"] == self.refused_kind:
            raise self.error
        return await super().apply(obj, manager, force=force)


class Bench:
    """One ModelDeployment with its references, and passes over it."""

    def __init__(self) -> None:
        self.api = FakeCluster(lambda: "2027-01-01T00:00:00Z")
        for obj in (sim_objects.gpu_class(), sim_objects.release(), sim_objects.model(), sim_objects.deployment()):
            self.api.create(obj)
        self.writes: list[Write] = []
        self.client = RefusingClient(self.api, "test", random.Random(1), GOOD, self.writes.append)
        self.metrics = Metrics()

    def run(self, key: Key = KEY) -> Outcome:
        """One pass of a fresh process."""
        return self.run_with(self.passes(), key)

    def passes(self) -> Passes:
        """The passes of one process; its clock stands still."""
        clock = VirtualClock(VirtualLoop())
        observer = Observer(self.client, NoRouters(), Settings("forebay/router:1", "forebay-system"))
        executor = Executor(self.client, clock, "test", lambda: True)
        return Passes(observer, executor, clock, self.metrics)

    def run_with(self, passes: Passes, key: Key = KEY) -> Outcome:
        """One pass of a process."""
        return run_virtual(passes.run(key), VirtualLoop())

    def refuse(self, kind: str, error: ForebayError) -> None:
        """From now on."""
        self.client.refused_kind = kind
        self.client.error = error

    def condition(self, kind: str) -> dict[str, Any]:
        live = self.api.get(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME)
        assert live is not None
        return condition(live, kind)


def test_a_pass_over_nothing_new_writes_nothing() -> None:
    bench = Bench()
    while bench.writes or not bench.api.list("apps/v1", "Deployment", NAMESPACE):
        bench.writes.clear()
        assert isinstance(bench.run(), Done)
    assert isinstance(bench.run(), Done)
    assert bench.writes == []


def test_a_missing_permission_is_reported_once_and_tried_again_slowly() -> None:
    bench = Bench()
    bench.refuse("Role", ApiDenied('roles is forbidden: cannot create resource "roles"'))
    assert bench.run() == Failed(DENIED_RETRY_S)
    stalled = bench.condition("Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "PermissionDenied")
    assert 'cannot create resource "roles"' in stalled["message"]
    assert bench.condition("Ready")["status"] == "False"
    bench.writes.clear()
    assert bench.run() == Failed(DENIED_RETRY_S)
    assert bench.writes == [], "the status says so already"


def test_a_granted_permission_clears_the_report() -> None:
    bench = Bench()
    bench.refuse("Role", ApiDenied("forbidden"))
    bench.run()
    bench.refuse("", Bug("unset"))
    assert isinstance(bench.run(), Done)
    assert bench.condition("Stalled") == {}


def test_a_refused_object_is_reported_as_such() -> None:
    bench = Bench()
    bench.refuse("Service", ApplyRefused("Service is invalid: spec.ports: duplicate"))
    bench.run()
    assert bench.condition("Stalled")["reason"] == "ApplyRefused"


def test_a_busy_server_is_given_the_time_it_asks_for() -> None:
    bench = Bench()
    bench.refuse("Role", ApiThrottled("busy", retry=Retry(RetryKind.AFTER, 9.0)))
    assert bench.run() == Failed(9.0)
    assert bench.condition("Stalled") == {}


def test_a_bug_in_one_pass_is_an_outcome_not_a_crash() -> None:
    bench = Bench()
    bench.refuse("Role", Bug("broken invariant"))
    assert bench.run() == Failed()
    assert 'outcome="bug"} 1' in bench.metrics.registry.render()


def test_somebody_who_undoes_every_change_does_not_make_us_spin() -> None:
    bench = Bench()
    while not bench.api.list("apps/v1", "Deployment", NAMESPACE):
        bench.run()
    outcomes = []
    passes = bench.passes()
    for _ in range(MAX_APPLYING_PASSES + 2):
        service = bench.api.get("v1", "Service", NAMESPACE, NAME)
        assert service is not None
        bench.api.replace({**service, "spec": {**service["spec"], "selector": {"app": "theirs"}}})
        outcomes.append(bench.run_with(passes))
    assert all(isinstance(outcome, Done) for outcome in outcomes[:MAX_APPLYING_PASSES])
    assert outcomes[-1] == Failed()


def test_a_key_of_an_unknown_kind_is_a_bug() -> None:
    assert Bench().run(Key("Unknown", "a", "b")) == Failed()


def test_a_deleted_resource_needs_nothing() -> None:
    bench = Bench()
    assert bench.run(Key(DEPLOYMENT_KIND, NAMESPACE, "never-was")) == Done()
    assert bench.writes == []
