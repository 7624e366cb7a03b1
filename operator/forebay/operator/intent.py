"""What the spec of a ModelDeployment asks for, or why it cannot be had: references, checks, configuration, revision.

Pure; called once per pass by `reconcile`, before anything that runs is looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.operator.checks import check_memory, check_references, check_rollout
from forebay.operator.desired.engine import engine_objects
from forebay.operator.desired.metadata import Owner
from forebay.operator.effective import Effective, resolve
from forebay.operator.references import Problem, References, find_references, read_deployment
from forebay.operator.revision import controller_revision, revision_name, template_of
from forebay.operator.snapshot import DeploymentSnapshot, Json, Settings


@dataclass(frozen=True, slots=True)
class Intent:
    """A spec that can be realised: its configuration and the revision that it makes."""

    references: References
    effective: Effective
    template: Mapping[str, Any]
    revision: str


def read_intent(document: Json, snapshot: DeploymentSnapshot) -> Intent | Problem:
    """The intent, or the first problem in the order: spec, references, checks, configuration, memory."""
    deployment = read_deployment(document)
    if isinstance(deployment, Problem):
        return deployment
    references = find_references(deployment, snapshot)
    if isinstance(references, Problem):
        return references
    problem = check_references(references) or check_rollout(deployment)
    if problem is not None:
        return problem
    effective = resolve(references)
    if isinstance(effective, Problem):
        return effective
    problem = check_memory(references, effective)
    if problem is not None:
        return problem
    template = template_of(references, effective)
    return Intent(references, effective, template, revision_name(template))


def render(owner: Owner, intent: Intent, number: int, settings: Settings) -> dict[str, Any]:
    """A new revision's ControllerRevision with its rendered objects inside."""
    objects = engine_objects(owner, intent.revision, intent.references, intent.effective, settings)
    kv_format = intent.references.release.spec.kv_format
    effective = {**intent.effective.to_status(), "kvEpoch": kv_format.epoch if kv_format else None}
    return controller_revision(owner, intent.revision, number, intent.template, objects, effective)
