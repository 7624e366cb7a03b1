"""The executor: order, the first error, and what it refuses."""

import random
from typing import Any

import pytest

import sim_objects
from fake_cluster import FakeCluster
from forebay.contract.errors import ApiConflict, Bug
from forebay.contract.names import (
    LABEL_DEPLOYMENT,
    LABEL_DEPLOYMENT_UID,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    MANAGER_WORKLOAD,
)
from forebay.operator.actions import Action, Apply, Delete, Emit, PatchStatus
from forebay.operator.cluster import DEPLOYMENT_KIND, FOREBAY_API, ApplyRefused
from forebay.operator.execute import Execution, Executor
from forebay.operator.lease import LeadershipLost
from sim_network import GOOD, FakeClient, Write
from sim_objects import NAME, NAMESPACE, Obj
from virtual_loop import VirtualClock, VirtualLoop, run_virtual


class Bench:
    """An executor on a fake API server that holds one ModelDeployment."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.api = FakeCluster(lambda: "2027-01-01T00:00:00Z")
        self.own = self.api.create(sim_objects.deployment())
        self.writes: list[Write] = []
        self.leads = True
        client = FakeClient(self.api, "test", random.Random(1), GOOD, self.writes.append)
        self.executor = Executor(client, VirtualClock(self.loop), "test", lambda: self.leads)

    def execute(self, *actions: Action, children: list[Obj] | None = None) -> Execution:
        """Perform the actions as one pass would."""

        async def body() -> Execution:
            return await self.executor.execute(actions, self.own, children or [])

        loop, self.loop = self.loop, VirtualLoop()
        return run_virtual(body(), loop)

    def did(self) -> list[tuple[str, str]]:
        return [(write.verb, write.kind) for write in self.writes]


def config_map(name: str = "chat-routes", uid: str = "uid-1", **labels: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                LABEL_MANAGED_BY: MANAGED_BY,
                LABEL_DEPLOYMENT: NAME,
                LABEL_DEPLOYMENT_UID: uid,
                **labels,
            },
        },
        "data": {"a": "b"},
    }


def apply(obj: Obj, *, force: bool = False) -> Apply:
    return Apply(obj, MANAGER_WORKLOAD, force=force, reason="test")


def status(**fields: Any) -> PatchStatus:
    return PatchStatus(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME, fields)


def emit() -> Emit:
    return Emit(sim_objects.deployment(), "Normal", "Servable", "it answers")


def test_actions_are_performed_in_order() -> None:
    bench = Bench()
    done = bench.execute(apply(config_map("one")), apply(config_map("two")), status(replicas=1), emit())
    assert done == Execution(4)
    assert [str(write).partition(" ")[2] for write in bench.writes] == [
        "apply ConfigMap/one",
        "apply ConfigMap/two",
        "status ModelDeployment/chat",
        bench.writes[-1].verb + " Event/" + bench.writes[-1].name,
    ]


def test_the_first_error_ends_the_pass_and_is_returned_with_its_action() -> None:
    bench = Bench()
    revision = {**config_map("rev"), "apiVersion": "apps/v1", "kind": "ControllerRevision"}
    bench.execute(apply({**revision, "data": {"x": 1}}))
    changed = apply({**revision, "data": {"x": 2}}, force=True)
    done = bench.execute(apply(config_map("one")), changed, apply(config_map("two")))
    assert (done.done, done.failed) == (1, changed)
    assert isinstance(done.error, ApplyRefused)
    assert bench.api.get("v1", "ConfigMap", NAMESPACE, "two") is None


def test_an_object_of_somebody_else_with_the_same_name_is_left_alone() -> None:
    bench = Bench()
    theirs = bench.api.create({**config_map(), "metadata": {"name": "chat-routes", "namespace": NAMESPACE}})
    done = bench.execute(apply(config_map()))
    assert isinstance(done.error, ApplyRefused)
    assert "not managed by Forebay" in done.error.message
    assert bench.api.get("v1", "ConfigMap", NAMESPACE, "chat-routes") == theirs


def test_a_child_of_a_deleted_namesake_is_waited_for() -> None:
    bench = Bench()
    bench.api.create(config_map(uid="uid-of-the-old-one"))
    assert isinstance(bench.execute(apply(config_map())).error, ApiConflict)


def test_repeating_a_create_that_was_cut_off_is_harmless() -> None:
    bench = Bench()
    bench.execute(apply(config_map()))
    before = bench.api.objects()
    assert bench.execute(apply(config_map())).error is None
    assert bench.api.objects() == before


def test_nothing_is_written_without_the_lease() -> None:
    bench = Bench()
    bench.leads = False
    with pytest.raises(LeadershipLost):
        bench.execute(apply(config_map()))
    assert bench.writes == []


def test_a_status_of_an_older_version_of_the_object_is_not_written() -> None:
    bench = Bench()
    bench.api.replace({**bench.own, "spec": {**bench.own["spec"], "replicas": 3}})
    assert isinstance(bench.execute(status(replicas=1)).error, ApiConflict)


def test_a_status_of_a_deleted_object_is_no_error() -> None:
    bench = Bench()
    bench.api.delete(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME)
    assert bench.execute(status(replicas=1)) == Execution(1)


def test_deleting_guards_against_namesakes_and_what_is_gone_is_fine() -> None:
    bench = Bench()
    child = bench.api.create(config_map())
    wrong = Delete("v1", "ConfigMap", NAMESPACE, "chat-routes", "another", "test")
    right = Delete("v1", "ConfigMap", NAMESPACE, "chat-routes", child["metadata"]["uid"], "test")
    assert isinstance(bench.execute(wrong).error, ApiConflict)
    assert bench.execute(right).error is None
    assert bench.execute(right).error is None


def test_kinds_outside_the_table_of_children_are_a_bug() -> None:
    secret = {**config_map(), "kind": "Secret"}
    node = Delete("v1", "Node", "", "node-1", "uid", "test")
    for action in (apply(secret), node):
        with pytest.raises(Bug):
            Bench().execute(action)


def test_an_event_that_is_there_already_is_not_repeated_or_reported() -> None:
    bench = Bench()
    assert bench.execute(emit()) == Execution(1)
    assert bench.execute(emit()) == Execution(1)
    assert len(bench.api.list("events.k8s.io/v1", "Event", NAMESPACE)) == 1
