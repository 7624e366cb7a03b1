"""A deployment and its rollout as text for a terminal. Pure: objects in, lines out."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

_MARKS: Final = {"done": "[x]", "now": "[>]", "next": "[ ]", "left": "[-]"}
_OVER: Final = frozenset({"Completed", "RolledBack", "Superseded"})


def is_over(rollout: Json | None) -> bool:
    """Whether nothing changes about this run any more."""
    return rollout is None or (rollout.get("status") or {}).get("phase") in _OVER


def deployment_lines(deployment: Json) -> list[str]:
    """What a deployment serves, and its conditions that matter."""
    status, spec = deployment.get("status") or {}, deployment["spec"]
    metadata = deployment["metadata"]
    what = f"{spec['modelRef']['name']} {spec['precision']} on {spec['gpuClassRef']['name']}"
    lines = [
        f"{metadata['namespace']}/{metadata['name']}  {what}, release {spec['engineReleaseRef']['name']}",
        f"  serves    revision {status.get('stableRevision', '(none yet)')}",
    ]
    if status.get("targetRevision") != status.get("stableRevision"):
        lines.append(f"  asked for revision {status.get('targetRevision', '(unknown)')}")
    if status.get("rejectedRevisions"):
        lines.append(f"  rejected  {', '.join(status['rejectedRevisions'])}")
    for condition in status.get("conditions") or ():
        if condition["type"] in {"Ready", "Servable", "Stalled", "Reconciling"}:
            lines.append(f"  {condition['type']:<11} {condition['status']:<7} {condition['reason']}")
            if condition["type"] in {"Stalled", "Reconciling"}:
                lines.append(f"              {condition['message']}")
    return lines


def rollout_lines(rollout: Json) -> list[str]:
    """The steps of a run, where it is, and what its gates say."""
    status, spec = rollout.get("status") or {}, rollout["spec"]
    phase = status.get("phase", "Pending")
    way = f"{spec['stable']['revision']} -> {spec['candidate']['revision']}"
    lines = [f"Rollout {rollout['metadata']['name']}  {phase}  {way}  {status.get('traffic', 0)} % of the traffic"]
    at, past = status.get("stepIndex", 0), {item["name"]: item for item in status.get("history") or ()}
    for index, step in enumerate(spec["plan"]["steps"]):
        mark = _MARKS[_place(phase, index, at, step["name"] in past)]
        soak = f", soaks {step['soakSeconds']} s" if step.get("soakSeconds") else ""
        lines.append(
            f"  {mark} {step['name']:<12} {step['capacity']:>5} of the pods, {step['traffic']:>3} % traffic{soak}"
        )
        gates = (past.get(step["name"]) or {}).get("gates") or (status.get("gates") if index == at else None) or ()
        lines += _gate_lines(gates)
    if status.get("message"):
        lines.append(f"  {status['message']}")
    lines += [f"  note: {note}" for note in status.get("notes") or ()]
    return lines


def _place(phase: str, index: int, at: int, is_past: bool) -> str:
    if is_past or phase in {"Completed", "Soaking"}:
        return "done" if phase not in {"RolledBack", "Superseded", "RollingBack"} or index < at else "left"
    if phase in {"RolledBack", "Superseded", "RollingBack"}:
        return "left"
    return "now" if index == at and phase in {"Progressing", "Paused"} else "next"


def _gate_lines(gates: Iterable[Json]) -> list[str]:
    return [f"        {gate['gate']}: {gate['verdict']}  {gate['message']}" for gate in gates]
