"""The status: what a person and kstatus read, in states that a settled deployment can fall into."""

from dataclasses import replace
from typing import Any

import operator_build as build
from forebay.operator.actions import PatchStatus
from forebay.operator.conditions import ConditionType
from forebay.operator.reconcile import reconcile_deployment
from forebay.operator.snapshot import DeploymentSnapshot
from operator_world import World


def _settled(**spec: Any) -> World:
    world = World(build.deployment(**spec))
    world.settle()
    return world


def _status(world: World, snapshot: DeploymentSnapshot | None = None) -> dict[str, Any]:
    actions = reconcile_deployment(snapshot or world.snapshot(), world.now).actions
    written = [action.status for action in actions if isinstance(action, PatchStatus)]
    return written[0] if written else world.document["status"]


def _shown(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def test_a_deployment_without_a_ready_router_is_not_servable() -> None:
    world = _settled()
    (name,) = world.routers
    world.pods[name] = build.pod(
        name, "router", world.pods[name]["metadata"]["labels"]["forebay.dev/revision"], ready=False
    )
    shown = _shown(_status(world))
    assert shown["Servable"] == ("False", "RouterNotReady")
    assert shown["RouterSynced"] == ("False", "RouterNotReady")
    assert shown["Reconciling"] == ("True", "Progressing")


def test_a_deployment_whose_engines_died_is_not_servable_until_one_is_back() -> None:
    world = _settled(replicas=2)
    for name in list(world.engines()):
        world.pod_dies(name)
    shown = _shown(_status(world))
    assert shown["Servable"] == ("False", "NoEndpoints")
    assert shown["RouterSynced"] == ("False", "NoEndpoints")
    world.controllers()
    world.pod_ready(min(world.engines()))
    shown = _shown(_status(world))
    assert shown["Servable"] == ("True", "Routable")
    assert shown["Ready"] == ("False", "Progressing")


def test_engines_that_no_router_can_reach_are_not_servable() -> None:
    world = _settled()
    (name,) = world.routers
    silent = build.router(name, build.report(world.routers[name].epoch))
    shown = _shown(_status(world, replace(world.snapshot(), routers=(silent,))))
    assert shown["Servable"] == ("False", "NotRoutable")
    assert shown["RouterSynced"] == ("False", "EndpointsPending")


def test_a_router_that_never_answered_the_operator_proves_nothing() -> None:
    world = _settled()
    world.document["status"]["conditions"] = []
    shown = _shown(_status(world, replace(world.snapshot(), routers=())))
    assert shown["Servable"] == ("False", "RouterUnreachable")


def test_a_router_that_has_not_taken_the_routes_is_waited_for() -> None:
    world = _settled()
    for router in world.routers.values():
        router.epoch -= 1
    old = build.report(0)
    (name,) = world.routers
    shown = _shown(_status(world, replace(world.snapshot(), routers=(build.router(name, old),))))
    assert shown["RouterSynced"] == ("False", "RoutesPending")
    assert shown["Ready"][0] == "False"


def test_routers_that_are_being_replaced_keep_it_servable_and_not_ready() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(router={"replicas": 2}))
    world.operator_pass()
    world.controllers()
    shown = _shown(_status(world))
    assert shown["Servable"] == ("True", "Routable")
    assert shown["Ready"] == ("False", "Progressing")


def test_every_condition_and_the_status_carry_the_generation() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(replicas=2))
    status = _status(world)
    assert status["observedGeneration"] == 2
    assert {item["observedGeneration"] for item in status["conditions"]} == {2}


def test_pods_that_finish_their_requests_are_shown_as_draining() -> None:
    world = _settled(replicas=2)
    world.edit(lambda spec: spec.update(replicas=1))
    world.operator_pass()
    world.controllers()
    status = _status(world)
    (engine,) = [role for role in status["roles"] if role["name"] == "engine"]
    assert (engine["desired"], engine["updated"], engine["draining"]) == (1, 1, 1)
    assert _shown(status)["Ready"] == ("False", "Draining")


def test_roles_show_both_revisions_while_they_change() -> None:
    world = _settled()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    roles = _status(world)["roles"]
    assert sorted((role["name"], role["desired"], role["ready"], role["routable"]) for role in roles) == [
        ("engine", 1, 0, 0),
        ("engine", 1, 1, 1),
        ("router", 1, 1, 1),
    ]


def test_the_scale_subresource_finds_all_engine_pods_and_no_other() -> None:
    world = _settled(replicas=3)
    status = world.document["status"]
    wanted = dict(part.split("=") for part in status["selector"].split(","))
    chosen = [p for p in world.pods.values() if wanted.items() <= p["metadata"]["labels"].items()]
    assert len(chosen) == status["replicas"] == 3


def test_the_address_is_the_service_in_the_cluster() -> None:
    assert _settled().document["status"]["url"] == "http://chat.shop.svc"


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    world = _settled()
    before = {item["type"]: item["lastTransitionTime"] for item in world.document["status"]["conditions"]}
    world.edit(lambda spec: spec.update(replicas=2))
    world.settle()
    after = {item["type"]: item["lastTransitionTime"] for item in world.document["status"]["conditions"]}
    assert after[ConditionType.SERVABLE] == before[ConditionType.SERVABLE]
    assert after[ConditionType.READY] > before[ConditionType.READY]
