"""Which pod fields a user may set through `spec.engine.pod`, and how they are merged into a pod template.

An allow-list: what is not listed (containers, volumes, security contexts, host namespaces) stays the operator's, so
that no override can break the restricted security profile or the rollout. Forebay's own labels and selectors win.
"""

from collections.abc import Mapping
from typing import Any, Final

from forebay.contract.names import GROUP

ALLOWED_OVERRIDES: Final[dict[str, type[dict[str, Any]] | type[list[Any]] | type[str]]] = {
    "affinity": dict,
    "annotations": dict,
    "imagePullSecrets": list,
    "labels": dict,
    "nodeSelector": dict,
    "priorityClassName": str,
    "runtimeClassName": str,
    "schedulerName": str,
    "serviceAccountName": str,
    "tolerations": list,
    "topologySpreadConstraints": list,
}
"""Pod field -> its JSON type."""

_TYPE_NAMES: Final = {"dict": "a map", "list": "a list", "str": "a string"}
_TEXT_MAPS: Final = frozenset({"annotations", "labels", "nodeSelector"})
_OWN_LABELS: Final = (f"{GROUP}/", "app.kubernetes.io/managed-by")


def override_problem(key: str, value: Any) -> str | None:
    """What is wrong with the value of an allowed override, or None."""
    expected = ALLOWED_OVERRIDES[key]
    if not isinstance(value, expected) or not value:
        return f"must be {_TYPE_NAMES[expected.__name__]} that is not empty"
    match value:
        case dict():
            return _map_problem(key, value)
        case list() if not all(isinstance(item, dict) and item for item in value):
            return "every entry must be a map that is not empty"
        case _:
            return None


def _map_problem(key: str, value: Mapping[str, Any]) -> str | None:
    if key in _TEXT_MAPS and not all(isinstance(item, str) for item in value.values()):
        return "every value must be a string; put quotes around numbers and booleans"
    if key == "affinity":
        return _affinity_problem(value)
    own = sorted(name for name in value if name.startswith(_OWN_LABELS)) if key in {"labels", "annotations"} else []
    return f"{own[0]} belongs to the operator; use another key" if own else None


def apply_overrides(template: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A pod template with the user's overrides merged in.

    Maps are merged (the template's own keys win for labels), lists are added to the template's, texts replace.
    `topologySpreadConstraints` replaces the default, because two constraints on one topology key are refused.
    """
    metadata, spec = dict(template["metadata"]), dict(template["spec"])
    for key in sorted(overrides):
        value = overrides[key]
        match key:
            case "labels":
                metadata["labels"] = {**value, **metadata["labels"]}
            case "annotations":
                metadata["annotations"] = {**value, **metadata.get("annotations", {})}
            case "nodeSelector":
                spec[key] = {**value, **spec.get(key, {})}
            case "affinity":
                spec[key] = merge_affinity(spec.get(key, {}), value)
            case "tolerations" | "imagePullSecrets":
                spec[key] = [*spec.get(key, []), *(item for item in value if item not in spec.get(key, []))]
            case _:
                spec[key] = value
    return {"metadata": metadata, "spec": spec}


def merge_affinity(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The user's affinity, with the products of the class required in every alternative that it allows."""
    merged = {**ours, **theirs}
    if not ours or "nodeAffinity" not in theirs:
        return merged
    (product,) = ours["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    node = dict(theirs["nodeAffinity"])
    terms = node.get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    node[_REQUIRED] = {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*term.get("matchExpressions", []), *product["matchExpressions"]]}
            for term in terms
        ]
    }
    return {**merged, "nodeAffinity": node}


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def _affinity_problem(value: Mapping[str, Any]) -> str | None:
    """Whether the parts that `merge_affinity` walks through have the shape of a pod's affinity."""
    node = value.get("nodeAffinity", {})
    required = node.get(_REQUIRED, {}) if isinstance(node, dict) else None
    terms = required.get("nodeSelectorTerms", []) if isinstance(required, dict) else None
    if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
        return f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms must be a list of maps"
    if not all(isinstance(term.get("matchExpressions", []), list) for term in terms):
        return "matchExpressions must be a list"
    return None
