"""What a ModelDeployment would do if it were applied: its configuration, what changes, what blocks, and its steps.

Works from files alone, or fills in from the cluster what the files leave out. The judgement is the operator's own code,
so that what is printed here is what the operator will decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from forebay.api.kinds import kind_of
from forebay.api.shape import parse
from forebay.cli.kubectl import Cluster, CommandFailed
from forebay.contract.errors import InvalidSpec
from forebay.contract.names import LABEL_DEPLOYMENT
from forebay.operator.intent import Intent, read_intent
from forebay.operator.references import Problem
from forebay.operator.rollout.policy import Policy, read_policy
from forebay.operator.rollout.preflight import Change, Preflight, changes, preflight
from forebay.operator.snapshot import DeploymentSnapshot, Settings

Json = Mapping[str, Any]
_REFERENCES = {"model": "Model", "gpu_class": "GPUClass", "release": "EngineRelease"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What would happen. `stable` is None where nothing serves yet: then there is no rollout."""

    deployment: str
    revision: str
    values: tuple[dict[str, Any], ...]
    stable: str | None
    changed: tuple[Change, ...]
    checks: Preflight | None
    policy: Policy

    @property
    def blocked(self) -> bool:
        """Whether the run would be held before it touches a pod."""
        return self.checks is not None and bool(self.checks.problems)

    def to_json(self) -> dict[str, Any]:
        """For `-o json` and `-o yaml`."""
        return {
            "deployment": self.deployment,
            "revision": self.revision,
            "stable": self.stable,
            "effective": list(self.values),
            "changes": [
                {"key": item.key, "from": item.before, "to": item.after, "movedDefault": item.is_default}
                for item in self.changed
            ],
            "blocks": list(self.checks.problems) if self.checks else [],
            "notes": list(self.checks.notes) if self.checks else [],
            "plan": self.policy.to_json(),
        }


def read_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All documents of YAML files; raises `CommandFailed` for one that is none of ours or not valid."""
    documents: list[dict[str, Any]] = []
    for path in paths:
        try:
            documents += [item for item in yaml.safe_load_all(path.read_text("utf-8")) if item]
        except (OSError, yaml.YAMLError) as error:
            raise CommandFailed(f"{path}: {error}") from error
    for document in documents:
        try:
            parse(kind_of(document).model, document)
        except InvalidSpec as error:
            name = (document.get("metadata") or {}).get("name", "(no name)")
            raise CommandFailed(f"{document.get('kind')} {name}: {error.message}") from error
    return documents


def predict(documents: Sequence[Json], cluster: Cluster | None, today: date) -> Prediction:
    """Judge the one ModelDeployment among `documents`; `cluster` None works from the documents alone."""
    deployments = [item for item in documents if item["kind"] == "ModelDeployment"]
    if len(deployments) != 1:
        raise CommandFailed(f"the files have {len(deployments)} ModelDeployments; give exactly one")
    deployment = _placed(deployments[0])
    refs = {name: _find(documents, cluster, kind, deployment) for name, kind in _REFERENCES.items()}
    snapshot = DeploymentSnapshot(
        namespace=deployment["metadata"]["namespace"],
        name=deployment["metadata"]["name"],
        deployment=deployment,
        model=refs["model"],
        gpu_class=refs["gpu_class"],
        release=refs["release"],
        children=(),
        pods=(),
        events=(),
        routers=(),
        settings=Settings(router_image="", operator_namespace=""),
    )
    intent = read_intent(deployment, snapshot)
    if isinstance(intent, Problem):
        raise CommandFailed(f"{intent.reason}: {intent.message}")
    stable, record = _stable(cluster, deployment)
    differs = stable is not None and stable != intent.revision
    return Prediction(
        deployment=deployment["metadata"]["name"],
        revision=intent.revision,
        values=tuple(intent.effective.to_status()["values"]),
        stable=stable,
        changed=changes(record, intent.effective) if record is not None and differs else (),
        checks=_checks(intent, record, refs["gpu_class"], today) if differs else None,
        policy=read_policy(intent.references.deployment.spec.rollout),
    )


def _checks(intent: Intent, record: Json | None, gpu_class: Json | None, today: date) -> Preflight:
    return preflight(
        intent.references,
        intent.effective,
        record,
        gpu_class,
        replicas=intent.references.deployment.spec.replicas or 1,
        today=today,
    )


def _placed(deployment: Json) -> dict[str, Any]:
    metadata = {"namespace": "default", "uid": "00000000", "generation": 1, **deployment["metadata"]}
    return {**deployment, "metadata": metadata}


def _find(documents: Sequence[Json], cluster: Cluster | None, kind: str, deployment: Json) -> Json | None:
    field = {"Model": "modelRef", "GPUClass": "gpuClassRef", "EngineRelease": "engineReleaseRef"}[kind]
    name = deployment["spec"][field]["name"]
    found = next((item for item in documents if item["kind"] == kind and item["metadata"]["name"] == name), None)
    if found is not None or cluster is None:
        return found
    return cluster.get(kind.lower(), name)


def _stable(cluster: Cluster | None, deployment: Json) -> tuple[str | None, Json | None]:
    """The revision that serves in the cluster and the configuration stored with it."""
    name = deployment["metadata"]["name"]
    live = cluster.get("modeldeployment", name) if cluster is not None else None
    stable = ((live or {}).get("status") or {}).get("stableRevision")
    if cluster is None or stable is None:
        return None, None
    stored = cluster.list("controllerrevision", f"{LABEL_DEPLOYMENT}={name}")
    record = next((item for item in stored if item["metadata"]["name"].endswith(f"-{stable}")), None)
    return stable, ((record or {}).get("data") or {}).get("effective")


def lines(found: Prediction, *, only_changes: bool) -> list[str]:
    """The prediction for a terminal."""
    shown = [_head(found)]
    for item in found.changed:
        moved = "  (a default of the release moved)" if item.is_default else ""
        shown.append(f"  {item.key}: {item.before} -> {item.after}{moved}")
    if only_changes:
        return shown
    shown += [f"  {item['key']} = {item['value']}  ({item['source']})" for item in found.values]
    return [*shown, *_rollout_lines(found)] if found.checks is not None else shown


def _head(found: Prediction) -> str:
    if found.stable is None:
        return f"{found.deployment}: revision {found.revision}; nothing serves yet, so it starts without a rollout"
    if found.stable == found.revision:
        return f"{found.deployment}: revision {found.revision} serves already; no pod changes"
    return f"{found.deployment}: a rollout from revision {found.stable} to {found.revision}"


def _rollout_lines(found: Prediction) -> list[str]:
    checks = found.checks or Preflight((), ())
    shown = [f"  BLOCKED: {text}" for text in checks.problems]
    shown += [f"  note: {text}" for text in checks.notes]
    for step in found.policy.steps:
        gates = ", ".join(gate.name for gate in step.gates) or "none"
        shape = f"{step.capacity.text} of the pods, {step.traffic} % of the traffic, {step.soak_s} s"
        shown.append(f"  step {step.name}: {shape}, gates: {gates}")
    return [*shown, f"  then the old revision stays warm for {found.policy.bake_s} s"]
