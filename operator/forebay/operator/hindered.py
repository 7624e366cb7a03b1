"""The status of a resource whose children the API server refused to change: `Stalled`, with what is missing.

Pure; used by `worker` when a write of a pass was denied. What was known before stays: a refused write does not make a
deployment that serves any less servable.
"""

from datetime import datetime
from typing import Any

from forebay.contract.errors import ForebayError
from forebay.operator.cluster import ApplyRefused, Json
from forebay.operator.conditions import Condition, ConditionType, Reason, merge

_REPLACED = frozenset({ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED})


def hindered_status(own: Json, planned: Json | None, error: ForebayError, now: datetime) -> dict[str, Any] | None:
    """The status to write after `error`, or None when the live status of `own` already says so.

    `planned` is the status that the refused pass would have written; it is the base because it is newer.
    """
    live = own.get("status") or {}
    base = planned if planned is not None else live
    refused = isinstance(error, ApplyRefused)
    reason = Reason.APPLY_REFUSED if refused else Reason.PERMISSION_DENIED
    fix = "correct the spec" if refused else "grant the operator this permission"
    message = f"{error.message.rstrip('.')}; {fix}"
    generation = own["metadata"].get("generation", 0)
    changed = merge(
        live.get("conditions") or (),
        (
            Condition(ConditionType.READY, "False", reason, message),
            Condition(ConditionType.STALLED, "True", reason, message),
        ),
        generation,
        now,
    )
    kept = [c for c in base.get("conditions") or () if c.get("type") not in _REPLACED]
    status = {**base, "observedGeneration": generation, "conditions": [changed[0], *kept, changed[1]]}
    return None if _ordered(status) == _ordered(live) else status


def _ordered(status: Json) -> dict[str, Any]:
    return {**status, "conditions": sorted(status.get("conditions") or (), key=lambda c: str(c["type"]))}
