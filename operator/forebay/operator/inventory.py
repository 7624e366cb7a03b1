"""Passes over the kinds that own nothing: Model, GPUClass, EngineRelease and RolloutAction only get a status.

Pure; called by the queue's worker.
"""

from datetime import datetime
from typing import Any, Final

from forebay.api.enginerelease import EngineRelease
from forebay.api.gpuclass import GPUClass, GPUClassSpec
from forebay.api.model import Model
from forebay.api.shape import parse
from forebay.contract.errors import InvalidSpec
from forebay.operator.actions import Plan
from forebay.operator.conditions import Condition, ConditionType, Reason, merge
from forebay.operator.effective import check_release
from forebay.operator.events import transitions
from forebay.operator.observed import is_live
from forebay.operator.patch import patch_if_changed
from forebay.operator.quantity import parse_quantity
from forebay.operator.rollout.record import read_run
from forebay.operator.rollout.verbs import judge_action
from forebay.operator.snapshot import ActionSnapshot, GPUClassSnapshot, Json, ModelSnapshot, ReleaseSnapshot

MAX_AMBIGUOUS: Final = 64


def reconcile_model(snapshot: ModelSnapshot, now: datetime) -> Plan:
    """Report on a Model: whether its licence is accepted, and so whether its checkpoints may be served."""
    document = snapshot.model
    if document is None or _is_going(document):
        return Plan()
    try:
        spec = parse(Model, _without_status(document)).spec
    except InvalidSpec as error:
        return _report(document, {}, _invalid(error.message), now)
    accepted = bool(spec.license.accepted)
    phase = "Available" if accepted else "Blocked"
    fields = {"checkpoints": [{"precision": item.precision, "phase": phase} for item in spec.checkpoints]}
    if accepted:
        conditions = [
            Condition(ConditionType.READY, "True", Reason.VALID, "all checkpoints may be served"),
            Condition(ConditionType.LICENSE_ACCEPTED, "True", Reason.ACCEPTED, f"{spec.license.spdx} is accepted"),
        ]
    else:
        text = f"the licence {spec.license.spdx} is not accepted; read it and set spec.license.accepted to true"
        conditions = [
            Condition(ConditionType.READY, "False", Reason.LICENSE_NOT_ACCEPTED, text),
            Condition(ConditionType.STALLED, "True", Reason.LICENSE_NOT_ACCEPTED, text),
            Condition(ConditionType.LICENSE_ACCEPTED, "False", Reason.LICENSE_NOT_ACCEPTED, text),
        ]
    return _report(document, fields, conditions, now)


def reconcile_action(snapshot: ActionSnapshot) -> Plan:
    """Judge a RolloutAction once; its verdict stays."""
    document = snapshot.action
    if document is None or _is_going(document) or (document.get("status") or {}).get("phase"):
        return Plan()
    run = read_run(snapshot.rollout) if snapshot.rollout is not None else None
    return Plan(patch_if_changed(document, judge_action(document, run)))


def reconcile_release(snapshot: ReleaseSnapshot, now: datetime) -> Plan:
    """Report on an EngineRelease: whether its own defaults pass its schema."""
    document = snapshot.release
    if document is None or _is_going(document):
        return Plan()
    try:
        release = parse(EngineRelease, _without_status(document))
    except InvalidSpec as error:
        return _report(document, {}, _invalid(error.message), now)
    problem = check_release(release)
    if problem is not None:
        return _report(document, {}, _invalid(problem.message), now)
    ready = Condition(ConditionType.READY, "True", Reason.VALID, f"version {release.spec.version} can be used")
    return _report(document, {}, [ready], now)


def reconcile_gpu_class(snapshot: GPUClassSnapshot, now: datetime) -> Plan:
    """Report on a GPUClass: ready nodes that match, devices on them and free ones, ambiguous nodes."""
    document = snapshot.gpu_class
    if document is None or _is_going(document):
        return Plan()
    try:
        spec = parse(GPUClass, _without_status(document)).spec
    except InvalidSpec as error:
        return _report(document, {}, _invalid(error.message), now)
    selected = [node for node in snapshot.nodes if _is_selected(node, spec)]
    ambiguous = sorted(node["metadata"]["name"] for node in selected if _is_ambiguous(node, spec))
    nodes = [node for node in selected if _has_product(node, spec) and _is_node_ready(node)]
    total, free = _devices(nodes, spec, snapshot.pods)
    fields = {
        "nodes": len(nodes),
        "total": total,
        "free": free,
        "ambiguousNodes": ambiguous[:MAX_AMBIGUOUS],
    }
    return _report(document, fields, _class_conditions(len(nodes), ambiguous), now)


def _class_conditions(nodes: int, ambiguous: list[str]) -> list[Condition]:
    if nodes > 0:
        note = f"; not used because a product label is missing: {', '.join(ambiguous[:5])}" if ambiguous else ""
        return [Condition(ConditionType.READY, "True", Reason.NODES_FOUND, f"{nodes} nodes belong to the class{note}")]
    if ambiguous:
        text = f"spec.match.productLabels: nodes {', '.join(ambiguous[:5])} match the selector but lack a product label"
        return [Condition(ConditionType.READY, "False", Reason.AMBIGUOUS_NODES, f"{text}; label them")]
    text = "no ready node matches; correct spec.match or add nodes"
    return [Condition(ConditionType.READY, "False", Reason.NO_NODES, text)]


def _devices(nodes: list[Json], spec: GPUClassSpec, pods: tuple[Json, ...]) -> tuple[int, int]:
    """Total and free devices; for a class without a device the nodes, and those of them that accept pods."""
    if spec.resource is None:
        return len(nodes), sum(not (node.get("spec") or {}).get("unschedulable") for node in nodes)
    names = {node["metadata"]["name"] for node in nodes}
    total = sum(_amount(((node.get("status") or {}).get("allocatable") or {}), spec.resource.name) for node in nodes)
    used = sum(
        _requested(pod, spec.resource.name)
        for pod in pods
        if is_live(pod) and (pod.get("spec") or {}).get("nodeName") in names
    )
    return total, max(0, total - used)


def _requested(pod: Json, resource: str) -> int:
    containers = (pod.get("spec") or {}).get("containers") or []
    return sum(_amount((item.get("resources") or {}).get("requests") or {}, resource) for item in containers)


def _amount(amounts: Json, resource: str) -> int:
    return int(parse_quantity(amounts.get(resource, 0)))


def _is_selected(node: Json, spec: GPUClassSpec) -> bool:
    labels = node["metadata"].get("labels") or {}
    wanted = (spec.match.node_selector if spec.match else None) or {}
    return all(labels.get(key) == value for key, value in wanted.items())


def _is_ambiguous(node: Json, spec: GPUClassSpec) -> bool:
    labels = node["metadata"].get("labels") or {}
    return any(product.key not in labels for product in (spec.match.product_labels if spec.match else None) or [])


def _has_product(node: Json, spec: GPUClassSpec) -> bool:
    labels = node["metadata"].get("labels") or {}
    products = (spec.match.product_labels if spec.match else None) or []
    return all(labels.get(product.key) in product.values for product in products)


def _is_node_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _invalid(message: str) -> list[Condition]:
    return [
        Condition(ConditionType.READY, "False", Reason.INVALID_SPEC, message),
        Condition(ConditionType.STALLED, "True", Reason.INVALID_SPEC, message),
    ]


def _report(document: Json, fields: dict[str, Any], conditions: list[Condition], now: datetime) -> Plan:
    generation = document["metadata"].get("generation", 0)
    old = (document.get("status") or {}).get("conditions") or []
    status = {**fields, "observedGeneration": generation, "conditions": merge(old, conditions, generation, now)}
    return Plan((*patch_if_changed(document, status), *transitions(document, status)))


def _is_going(document: Json) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


def _without_status(document: Json) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "status"}
