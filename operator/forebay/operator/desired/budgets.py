"""Disruption budgets: a node drain takes one pod of a role at a time, over all revisions together."""

from typing import Any

from forebay.contract.names import ROLE_ENGINE, ROLE_ROUTER
from forebay.operator.desired.kinds import BUDGET
from forebay.operator.desired.metadata import Owner, child, selector


def budgets(owner: Owner) -> tuple[dict[str, Any], ...]:
    """Budgets of engines and routers; `maxUnavailable` so that a single replica never blocks a drain for ever."""
    return tuple(
        child(
            BUDGET,
            owner,
            f"{owner.name}-{role}",
            {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(owner, role)}}},
            role=role,
        )
        for role in (ROLE_ENGINE, ROLE_ROUTER)
    )
