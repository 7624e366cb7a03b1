"""Kinds Rollout and RolloutAction: one run from a revision to the next, and what people say to it.

A Rollout is written by the operator only. Its spec is the plan as it was when the run opened and never changes. A
RolloutAction is a verb of a person or a pipeline, bound to one run by its uid; who may create one is a matter of RBAC,
and it never changes either. Both say in their status what became of them.
"""

from typing import Annotated, Literal

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from forebay.api.common import Conditions, Count, Generation, Metadata, ObjectName
from forebay.api.rules import VALIDATIONS, Rule, matches
from forebay.api.shape import ATOMIC_LIST, MapKey, SchemaExtra, Shape, StatusShape

Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=64), SchemaExtra((("format", "date-time"),))]
Name63 = Annotated[str, Field(min_length=1, max_length=63)]
Percent = Annotated[int, Field(ge=0, le=100)]
Seconds = Annotated[int, Field(ge=0, le=604_800)]
Uid = Annotated[str, Field(min_length=1, max_length=64)]
CapacityText = Annotated[
    str,
    Field(min_length=1, max_length=8),
    matches("([1-9][0-9]{0,2}|1000)|([1-9][0-9]?|100)%", "must be a count such as 2 or a percentage from 1% to 100%"),
]


class Frozen:
    """Marks a spec that the API server refuses to change; a rule about a change has no reading on one value."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        document = handler.resolve_ref_schema(handler(schema))
        rule = {"rule": "self == oldSelf", "message": "spec is frozen; create another object instead"}
        return {**document, VALIDATIONS: [*document.get(VALIDATIONS, []), rule]}


class ErrorsGate(Shape):
    """Compares the errors that routers see on the candidate with those on the stable revision."""

    max_rate_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Error rate, in percent of requests, that is always acceptable; absent means 1."""
    max_ratio: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Above that rate: acceptable errors of the candidate as a multiple of the stable rate; absent means 1.5."""
    min_requests: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Requests on the candidate before the gate can pass; absent means 0, for deployments without steady traffic."""


class ApprovalGate(Shape):
    """Waits for a RolloutAction with verb approve."""


class WindowGate(Shape):
    """Lets the run go on only at certain hours."""

    days: Annotated[
        list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]], Field(min_length=1, max_length=7), ATOMIC_LIST
    ]
    """Days of the week, in UTC."""
    from_hour: Annotated[int, Field(ge=0, le=23)]
    """First hour of the window, in UTC."""
    to_hour: Annotated[int, Field(ge=1, le=24)]
    """Hour at which the window ends, in UTC."""

    rules = (
        Rule(
            expr="self.fromHour < self.toHour",
            message="fromHour must be before toHour; a window that crosses midnight needs two steps",
            holds=lambda value: value.from_hour < value.to_hour,
            field_path=".toHour",
        ),
    )


class Gate(Shape):
    """One gate of a step."""

    name: Name63
    """Name of the gate, once in its step."""
    errors: ErrorsGate | None = None
    """Errors that routers see."""
    approval: ApprovalGate | None = None
    """A person's approval."""
    window: WindowGate | None = None
    """Hours in which the run may go on."""

    rules = (
        Rule(
            expr="[has(self.errors), has(self.approval), has(self.window)].exists_one(set, set)",
            message="a gate must set exactly one of errors, approval, window",
            holds=lambda value: sum(item is not None for item in (value.errors, value.approval, value.window)) == 1,
        ),
    )


Gates = Annotated[list[Gate], Field(max_length=8), MapKey("name")]


class Step(Shape):
    """One step of a rollout."""

    name: Name63
    """Name of the step, once in the rollout."""
    capacity: CapacityText
    """Candidate pods: a count, or a percentage of the replicas."""
    traffic: Percent
    """Percent of the traffic that the candidate gets once its pods are routable."""
    soak_seconds: Seconds | None = None
    """Time in the step before gates may let it go on; absent means 0."""
    gates: Gates | None = None
    """All of them must pass."""


Steps = Annotated[
    list[Step],
    Field(min_length=1, max_length=16),
    MapKey("name"),
    Rule(
        expr="self[self.size() - 1].traffic == 100 && self[self.size() - 1].capacity == '100%'",
        message="the last step must have capacity 100% and traffic 100",
        holds=lambda steps: steps[-1].traffic == 100 and steps[-1].capacity == "100%",
    ),
]


class RolloutPolicy(Shape):
    """How a change of this deployment reaches traffic."""

    steps: Steps | None = None
    """Steps in order; capacity and traffic may only rise. Absent: one isolated pod, then 5, 50 and 100 percent."""
    bake_seconds: Seconds | None = None
    """Time after the last step during which the old revision stays warm; absent means 300."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=604_800)] | None = None
    """Time for the pods of a step to become routable, after which the run goes back; absent means 1800."""
    accept_changes: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=64), ATOMIC_LIST] | None
    ) = None
    """Configuration keys whose default may move with a new release."""
    accept_issues: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=64), ATOMIC_LIST] | None
    ) = None
    """Ids of known issues that may be taken over."""
    paused: bool | None = None
    """Open runs wait, and new ones wait before they touch a pod."""


class DeploymentIdentity(Shape):
    """The deployment of a run."""

    name: ObjectName
    """Name of the ModelDeployment."""
    uid: Uid
    """Its uid; a namesake made later is another deployment."""


class Side(Shape):
    """One side of a run."""

    revision: Name63
    """Revision."""
    release: Text
    """Its EngineRelease, empty where it is not known."""
    config_digest: Text
    """Digest of its effective configuration, empty where it is not known."""


class RunPlan(Shape):
    """The policy as it was when the run opened."""

    steps: Steps
    """All steps."""
    bake_seconds: Seconds
    """Time during which the old revision stays warm."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=604_800)]
    """Time for the pods of a step."""


class RolloutSpec(Shape):
    """What the run is about; frozen."""

    deployment: DeploymentIdentity
    """Whose run it is."""
    stable: Side
    """The revision that serves."""
    candidate: Side
    """The revision that is to serve."""
    generation: Generation
    """Generation of the deployment's spec that opened the run."""
    plan: RunPlan
    """Steps and times."""


class Evidence(StatusShape):
    """One number behind a verdict."""

    name: Name63
    """What was measured."""
    value: Annotated[str, Field(max_length=64)]
    """The number, as text."""


class GateStatus(StatusShape):
    """The last verdict of one gate."""

    gate: Name63
    """Name of the gate."""
    verdict: Literal["Pass", "Hold", "Fail", "Inconclusive"]
    """What it says."""
    message: Text
    """Why."""
    evidence: Annotated[list[Evidence], Field(max_length=16), MapKey("name")] | None = None
    """The numbers behind it."""


class StepRecord(StatusShape):
    """What happened in one step that is over."""

    name: Name63
    """Name of the step."""
    ended: Time
    """When it was over."""
    gates: Annotated[list[GateStatus], Field(max_length=8), MapKey("gate")] | None = None
    """The verdicts it ended with."""


class Baseline(StatusShape):
    """Counters of one router when the step's traffic was confirmed; later counts are compared with these."""

    router: Annotated[str, Field(min_length=1, max_length=253)]
    """Router pod."""
    revision: Name63
    """Revision."""
    requests: Count
    """Requests sent to the revision."""
    errors: Count
    """Of these, failed ones."""


class RolloutStatus(StatusShape):
    """Where the run is."""

    phase: Literal[
        "Pending",
        "Preflight",
        "Progressing",
        "Soaking",
        "Paused",
        "RollingBack",
        "Completed",
        "RolledBack",
        "Superseded",
    ]
    """What is shown; Paused hides the phase that `resumeTo` has."""
    resume_to: Annotated[str, Field(max_length=32)] | None = None
    """The phase that a paused run is in."""
    step: Annotated[str, Field(max_length=63)]
    """Name of the step."""
    step_index: Count
    """Its number, from 0."""
    since: Time
    """When the phase or step was entered."""
    confirmed_at: Time | None = None
    """When the step's capacity and traffic were first confirmed."""
    end: Annotated[str, Field(max_length=64)] | None = None
    """Why the run went back."""
    message: Text
    """What it waits for, or how it ended."""
    traffic: Percent | None = None
    """Percent of the traffic on the candidate, as the routes are written."""
    gates: Annotated[list[GateStatus], Field(max_length=8), MapKey("gate")] | None = None
    """Verdicts of the step's gates."""
    history: Annotated[list[StepRecord], Field(max_length=16), MapKey("name")] | None = None
    """Steps that are over."""
    baseline: Annotated[list[Baseline], Field(max_length=256), ATOMIC_LIST] | None = None
    """Router counters at the beginning of the step."""
    notes: Annotated[list[Text], Field(max_length=16), ATOMIC_LIST] | None = None
    """What preflight found and did not block on."""
    conditions: Conditions | None = None
    """Reconciling while the run is open."""


class Rollout(Shape):
    """One run from a stable revision to a candidate; written by the operator."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["Rollout"]
    metadata: Metadata
    spec: Annotated[RolloutSpec, Frozen()]
    status: RolloutStatus | None = None


class RolloutRef(Shape):
    """The run that an action is for."""

    name: ObjectName
    """Name of the Rollout."""
    uid: Uid
    """Its uid, so that an action never hits a later run of the same name."""


class RolloutActionSpec(Shape):
    """What somebody wants of a run; frozen."""

    rollout_ref: RolloutRef
    """The run, in the same namespace."""
    verb: Literal["approve", "pause", "resume", "abort", "retry"]
    """approve a step's approval gate; pause; resume; abort an open run; retry the candidate of one that went back."""
    step: Name63 | None = None
    """Only for approve: the step that is approved; absent means the one the run is at."""
    reason: Annotated[str, Field(min_length=1, max_length=512)]
    """Why; kept with the run."""

    rules = (
        Rule(
            expr="!has(self.step) || self.verb == 'approve'",
            message="step applies to verb approve only",
            holds=lambda value: value.step is None or value.verb == "approve",
            field_path=".step",
        ),
    )


class RolloutActionStatus(StatusShape):
    """What became of the action."""

    phase: Literal["Accepted", "Refused"]
    """Whether it takes effect."""
    message: Text
    """What it does, or why it was refused."""
    step: Annotated[str, Field(max_length=63)] | None = None
    """The step that an approval is for."""


class RolloutAction(Shape):
    """A verb on one run, said by a person or a pipeline."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["RolloutAction"]
    metadata: Metadata
    spec: Annotated[RolloutActionSpec, Frozen()]
    status: RolloutActionStatus | None = None
