"""Every status that the operator writes is one that the API server takes whole: no field pruned, no bound crossed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import operator_build as build
from forebay.api.crd import root_schema
from forebay.api.kinds import kind_of
from forebay.operator.actions import PatchStatus, Plan
from forebay.operator.conditions import ConditionType
from forebay.operator.inventory import reconcile_gpu_class, reconcile_model, reconcile_release
from forebay.operator.snapshot import GPUClassSnapshot, ModelSnapshot, ReleaseSnapshot
from operator_world import World
from structural import problems


def statuses(plan: Plan) -> list[dict[str, Any]]:
    return [action.status for action in plan.actions if isinstance(action, PatchStatus)]


def status_problems(document: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    return problems(root_schema(kind_of(document))["properties"]["status"], dict(status), "status")


@dataclass
class WatchedWorld(World):
    """A world that keeps every status the operator wrote."""

    written: list[PatchStatus] = field(default_factory=list)

    def operator_pass(self, stop_after: int | None = None) -> Plan:
        """One pass of the world, with its status writes kept."""
        plan = super().operator_pass(stop_after)
        self.written += [action for action in plan.actions if isinstance(action, PatchStatus)]
        return plan


def test_statuses_of_a_whole_life_fit() -> None:
    world = WatchedWorld()
    world.settle()
    world.edit(lambda spec: spec.update(restartToken="again"))
    world.settle()
    world.edit(lambda spec: spec.update(replicas=2))
    world.settle()
    world.edit(lambda spec: spec.update(precision="int4"))
    world.operator_pass()
    assert world.condition(ConditionType.STALLED) == "True"
    assert len(world.written) > 5
    assert {patch.kind for patch in world.written} == {"ModelDeployment", "Rollout"}
    for patch in world.written:
        assert status_problems({"apiVersion": patch.api_version, "kind": patch.kind}, patch.status) == []


@pytest.mark.parametrize(
    "document",
    [build.model(), build.model(accepted=False), build.gpu_class(), build.h100_class(), build.release()],
    ids=lambda item: item["kind"],
)
def test_statuses_of_the_other_kinds_fit(document: dict[str, Any]) -> None:
    name = document["metadata"]["name"]
    match document["kind"]:
        case "Model":
            plan = reconcile_model(ModelSnapshot("default", name, document), build.NOW)
        case "GPUClass":
            plan = reconcile_gpu_class(GPUClassSnapshot(name, document, nodes=(), pods=()), build.NOW)
        case _:
            plan = reconcile_release(ReleaseSnapshot(name, document), build.NOW)
    (status,) = statuses(plan)
    assert status_problems(document, status) == []


def test_a_field_that_the_schema_does_not_know_would_be_found() -> None:
    assert status_problems(build.deployment(), {"replicas": 1, "phase": "Running"}) == [
        'status.phase: unknown field "status.phase"'
    ]
