"""A whole pass: what is created, corrected, moved and removed, and what a pass never does."""

import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import operator_build as build
from forebay.contract.names import LABEL_REVISION
from forebay.operator.actions import Apply, Delete, Emit, PatchStatus, Plan
from forebay.operator.conditions import ConditionType
from forebay.operator.reconcile import reconcile_deployment
from operator_world import World


def _kinds(plan: Plan, kind: type) -> list[tuple[str, str]]:
    found = []
    for action in plan.actions:
        if isinstance(action, kind):
            match action:
                case Apply():
                    found.append((action.object["kind"], action.object["metadata"]["name"]))
                case Delete():
                    found.append((action.kind, action.name))
                case PatchStatus() | Emit():
                    found.append((type(action).__name__, ""))
    return found


def _settled(**spec: Any) -> World:
    world = World(build.deployment(**spec))
    world.settle()
    return world


def _condition(world: World, kind: ConditionType) -> dict[str, Any]:
    found = [item for item in world.document["status"]["conditions"] if item["type"] == kind]
    assert found, f"no condition {kind}"
    return dict(found[0])


def test_a_first_pass_stores_the_revision_before_it_creates_pods_and_writes_status_last() -> None:
    plan = reconcile_deployment(build.snapshot(), build.NOW)
    applied = _kinds(plan, Apply)
    kinds = [kind for kind, _ in applied]
    assert kinds[0] == "ControllerRevision"
    assert ("ConfigMap", "chat-routes") in applied[: kinds.index("Deployment")]
    assert set(kinds) == {
        "ControllerRevision",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ConfigMap",
        "Service",
        "Deployment",
    }
    assert [type(action) for action in plan.actions[len(applied) :]] == [PatchStatus, Emit]


def test_a_deployment_that_is_gone_or_going_gets_an_empty_plan() -> None:
    going = build.deployment()
    going["metadata"]["deletionTimestamp"] = "2027-01-01T12:00:00Z"
    assert reconcile_deployment(build.snapshot(going), build.NOW) == Plan()
    assert reconcile_deployment(replace(build.snapshot(), deployment=None), build.NOW) == Plan()


def test_a_settled_deployment_is_ready_servable_and_costs_nothing() -> None:
    world = _settled(replicas=2)
    plan = world.operator_pass()
    assert plan == Plan()
    shown = {item["type"]: item["status"] for item in world.document["status"]["conditions"]}
    assert shown == {
        "Ready": "True",
        "Servable": "True",
        "Scheduled": "True",
        "ModelCached": "True",
        "RouterSynced": "True",
    }
    assert world.document["status"]["replicas"] == 2
    assert world.document["status"]["stableRevision"] == world.document["status"]["targetRevision"]


def test_a_deployment_scaled_to_zero_is_ready_and_not_servable() -> None:
    world = _settled(replicas=0)
    assert _condition(world, ConditionType.READY)["reason"] == "ScaledToZero"
    assert _condition(world, ConditionType.SERVABLE)["status"] == "False"


def test_scaling_changes_only_the_number_of_pods() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(replicas=3))
    plan = world.operator_pass()
    (name,) = [name for kind, name in _kinds(plan, Apply)]
    assert name.startswith("chat-engine-")
    assert _kinds(plan, Delete) == []
    world.settle()
    assert len(world.engines()) == 3


def test_a_deleted_child_comes_back_and_an_edited_one_is_corrected() -> None:
    world = _settled()
    for key in sorted(world.children):
        before = copy.deepcopy(world.children[key])
        del world.children[key]
        world.settle()
        if key != ("ConfigMap", "chat-routes"):
            assert world.children[key]["metadata"]["name"] == before["metadata"]["name"]
    world.children["Service", "chat"]["spec"]["ports"][0]["port"] = 81
    assert _kinds(world.operator_pass(), Apply) == [("Service", "chat")]
    assert world.children["Service", "chat"]["spec"]["ports"][0]["port"] == 80


def test_routes_that_were_lost_or_edited_come_back_with_the_same_traffic_and_a_higher_epoch() -> None:
    world = _settled()
    serving, epoch = world.serving(), next(iter(world.routers.values())).epoch
    routes = world.children["ConfigMap", "chat-routes"]
    document = json.loads(routes["data"]["routes.json"])
    document["weights"] = [{"revision": "evil", "weight": 100}]
    routes["data"] = {"routes.json": json.dumps(document)}
    world.settle()
    assert world.serving() == serving
    del world.children["ConfigMap", "chat-routes"]
    world.settle()
    assert world.serving() == serving
    assert next(iter(world.routers.values())).epoch == epoch + 2


def test_a_missing_reference_changes_nothing_that_serves() -> None:
    world = _settled()
    world.parts = {"model": None, "gpu_class": None, "release": None}
    plan = world.operator_pass()
    assert (_kinds(plan, Apply), _kinds(plan, Delete)) == ([], [])
    assert _condition(world, ConditionType.READY)["reason"] == "ModelNotFound"
    assert _condition(world, ConditionType.RECONCILING)["reason"] == "ModelNotFound"
    assert _condition(world, ConditionType.SERVABLE)["status"] == "True"
    assert plan.requeue_after_s is None
    world.edit(lambda spec: spec.update(replicas=2))
    assert len(_kinds(world.operator_pass(), Apply)) == 1


def test_nothing_is_created_for_a_spec_that_cannot_be_realised() -> None:
    plan = reconcile_deployment(build.snapshot(model=build.model(accepted=False)), build.NOW)
    assert [type(action) for action in plan.actions] == [PatchStatus, Emit]
    plan = reconcile_deployment(build.snapshot(build.deployment(replicas=-1)), build.NOW)
    assert [type(action) for action in plan.actions] == [PatchStatus, Emit]


def test_a_changed_spec_moves_traffic_only_when_the_new_revision_is_ready_and_routable() -> None:
    world = _settled()
    old = world.serving()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    assert world.serving() == old
    world.operator_pass()
    assert world.serving() == old
    for name in sorted(world.pods):
        world.pod_ready(name)
    world.operator_pass()
    new = world.serving()
    assert new != old
    for _ in range(3):
        world.operator_pass()
        assert world.children["Deployment", f"chat-engine-{old}"]["spec"]["replicas"] == 1
    for name in world.routers:
        world.router_takes_routes(name)
    for _ in range(3):
        world.operator_pass()
    assert world.rollouts()[-1]["status"]["phase"] == "Completed"
    assert world.children["Deployment", f"chat-engine-{old}"]["spec"]["replicas"] == 0
    world.settle()
    assert ("Deployment", f"chat-engine-{old}") not in world.children
    assert world.document["status"]["stableRevision"] == new


def test_an_old_revision_keeps_its_pods_while_routers_report_requests_until_the_drain_is_overdue() -> None:
    world = _settled(limits={"maxSeconds": 100})
    old = world.serving()
    world.edit(lambda spec: spec.update(restartToken="two"))
    for _ in range(7):
        world.operator_pass()
        world.controllers()
        for name in sorted(world.pods):
            world.pod_ready(name)
        if world.serving() != old:
            break
    for name in world.routers:
        world.router_takes_routes(name)
    (busy,) = [n for n, pod in world.engines().items() if pod["metadata"]["labels"][LABEL_REVISION] == old]
    next(iter(world.routers.values())).inflight[busy] = 1
    for _ in range(4):
        world.operator_pass()
        assert world.children["Deployment", f"chat-engine-{old}"]["spec"]["replicas"] == 1
    assert _condition(world, ConditionType.RECONCILING)["reason"] == "Draining"
    world.now += timedelta(seconds=161)
    world.operator_pass()
    assert world.children["Deployment", f"chat-engine-{old}"]["spec"]["replicas"] == 0


def test_going_back_before_the_traffic_moved_removes_the_new_revision_at_once() -> None:
    world = _settled()
    old = world.serving()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    assert len([key for key in world.children if key[0] == "Deployment"]) == 3
    world.edit(lambda spec: spec.pop("restartToken"))
    plan = world.operator_pass()
    assert len([kind for kind, _ in _kinds(plan, Delete) if kind == "Deployment"]) == 1
    assert world.serving() == old
    assert _kinds(plan, Apply) == []
    assert world.rollouts()[-1]["status"]["phase"] == "Superseded"


def test_a_first_revision_that_never_came_up_is_replaced_at_once() -> None:
    world = World()
    world.operator_pass()
    world.controllers()
    bad = world.serving()
    world.edit(lambda spec: spec.update(restartToken="fixed"))
    world.operator_pass()
    assert world.serving() != bad
    world.operator_pass()
    assert ("Deployment", f"chat-engine-{bad}") not in world.children


def test_a_stored_revision_is_applied_from_its_bytes_whatever_the_renderer_makes_now() -> None:
    world = _settled()
    stored = world.children["ControllerRevision", f"chat-engine-{world.serving()}"]
    workload = next(item for item in stored["data"]["objects"] if item["kind"] == "Deployment")
    older = copy.deepcopy(workload)
    older["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    stored["data"] = {**stored["data"], "rendererVersion": 0, "objects": [*stored["data"]["objects"][:2], older]}
    world.settle()
    live = world.children["Deployment", f"chat-engine-{world.serving()}"]
    assert live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5
    assert world.document["status"]["rendererVersion"] == 0


def test_another_router_image_rolls_routers_and_no_engine() -> None:
    world = _settled()
    world.parts = {"settings": replace(build.SETTINGS, router_image="registry.test/router:0.2.0")}
    plan = world.operator_pass()
    assert _kinds(plan, Apply) == [("Deployment", "chat-router")]


def test_history_is_kept_short() -> None:
    world = _settled()
    for number in range(9):
        world.document["spec"]["restartToken"] = f"r{number}"
        world.settle()
    assert len([key for key in world.children if key[0] == "ControllerRevision"]) == 6


def test_objects_of_an_earlier_deployment_of_that_name_are_waited_for() -> None:
    world = _settled()
    world.document = build.deployment()
    world.document["metadata"]["uid"] = "another-uid"
    plan = world.operator_pass()
    assert _kinds(plan, Delete) == []
    assert ("Service", "chat") not in _kinds(plan, Apply)
    assert "earlier owner" in _condition(world, ConditionType.READY)["message"]
    assert plan.requeue_after_s is not None


def test_a_crash_of_the_new_revision_stalls_it_while_the_old_one_serves() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    target = world.document["status"]["targetRevision"]
    (name,) = [n for n, pod in world.engines().items() if pod["metadata"]["labels"][LABEL_REVISION] == target]
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": "no such file"}}
    status = {
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
        ],
    }
    world.pods[name] = build.pod(name, "engine", target, status=status)
    plan = world.operator_pass()
    assert _condition(world, ConditionType.STALLED)["reason"] == "CrashLoop"
    assert "no such file" in _condition(world, ConditionType.READY)["message"]
    assert _condition(world, ConditionType.SERVABLE)["status"] == "True"
    assert [action.reason for action in plan.actions if isinstance(action, Emit)] == ["CrashLoop"]
    assert world.operator_pass().actions == ()


def test_a_router_that_does_not_answer_stops_the_rollout_and_not_the_service() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    for name in sorted(world.pods):
        world.pod_ready(name)
    old = world.serving()
    silent = replace(world.snapshot(), routers=())
    plan = reconcile_deployment(silent, world.now)
    assert ("ConfigMap", "chat-routes") not in _kinds(plan, Apply)
    (patch,) = [a for a in plan.actions if isinstance(a, PatchStatus) and a.kind == "ModelDeployment"]
    shown = {item["type"]: (item["status"], item["reason"]) for item in patch.status["conditions"]}
    assert shown["Servable"] == ("True", "Routable")
    assert shown["RouterSynced"] == ("False", "RouterUnreachable")
    assert world.serving() == old
