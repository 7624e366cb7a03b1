"""What is known before a pod is touched: what blocks a run, and what is only noted. Pure.

The main check compares the resolved defaults of both releases under the user's unchanged spec: a default that moved
blocks until the user pins the key or lists it in `rollout.acceptChanges`. Known issues of the candidate's release block
by severity, unless accepted or expired. A run needs devices for both revisions at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from forebay.api.enginerelease import EngineRelease, IssueMatch, KnownIssue
from forebay.operator.effective import Effective
from forebay.operator.references import References
from forebay.operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class Preflight:
    """`problems` block, each with its ways out; `notes` are recorded with the run."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def blocks(self) -> str:
        """All problems as one message, empty when nothing blocks."""
        return "; ".join(self.problems)


@dataclass(frozen=True, slots=True)
class Change:
    """One configuration value that differs between two revisions; None: it was not set."""

    key: str
    before: Any
    after: Any
    is_default: bool


def preflight(
    references: References,
    effective: Effective,
    stable: Json | None,
    gpu_class: Json | None,
    *,
    replicas: int,
    today: date,
) -> Preflight:
    """Checks of a candidate against the stored record of the stable revision, None where nothing was stored with it.

    `gpu_class` is the live GPUClass: its status says how many devices are free, where they are counted.
    """
    policy = references.deployment.spec.rollout
    accepted_keys = set((policy.accept_changes if policy else None) or ())
    accepted_issues = set((policy.accept_issues if policy else None) or ())
    problems: list[str] = []
    notes: list[str] = []
    if stable is None:
        notes.append("the stable revision was stored without its configuration; moved defaults are not known")
    else:
        _defaults(changes(stable, effective), stable, effective, accepted_keys, problems, notes)
        _kv_format(references.release, stable, notes)
    _issues(references, effective, accepted_issues, today, problems, notes)
    resource = references.gpu_class.spec.resource
    free_devices = ((gpu_class or {}).get("status") or {}).get("free")
    if resource is not None and free_devices is not None and free_devices < replicas * resource.count:
        problems.append(
            f"the candidate needs {replicas * resource.count} {resource.name} beside the stable revision and "
            f"{free_devices} are free; free some, lower spec.replicas, or add nodes to the GPUClass"
        )
    return Preflight(tuple(problems), tuple(notes))


def changes(stable: Json, effective: Effective) -> tuple[Change, ...]:
    """Values that differ, by key. A default moved where neither side was chosen by the user or the operator."""
    before = {item["key"]: (item["value"], item["source"]) for item in stable.get("values") or ()}
    after = {item.key: (item.value, item.source) for item in effective.values}
    absent = (None, "release")
    found = []
    for key in sorted(before.keys() | after.keys()):
        (old, old_source), (new, new_source) = before.get(key, absent), after.get(key, absent)
        if old != new or (key in before) != (key in after):
            found.append(Change(key, old, new, old_source == new_source == "release"))
    return tuple(found)


def _defaults(
    found: Collection[Change],
    stable: Json,
    effective: Effective,
    accepted: Collection[str],
    problems: list[str],
    notes: list[str],
) -> None:
    for change in found:
        moved = f"{change.key} from {_shown(change.before)} to {_shown(change.after)}"
        if not change.is_default:
            notes.append(f"configured: {moved}")
        elif change.key in accepted:
            notes.append(f"accepted: release {effective.release} moves the default of {moved}")
        else:
            old = _shown(change.before)
            pin = f"set spec.engine.config.{change.key} (to {old} to keep it)" if change.before is not None else ""
            pin = pin or f"set spec.engine.config.{change.key}"
            problems.append(
                f"release {effective.release} moves the default of {moved}, which release {stable.get('release')} "
                f"had; {pin}, or list {change.key} in spec.rollout.acceptChanges"
            )


def _shown(value: Any) -> str:
    return "(not set)" if value is None else str(value)


def _kv_format(release: EngineRelease, stable: Json, notes: list[str]) -> None:
    before, after = stable.get("kvEpoch"), release.spec.kv_format.epoch if release.spec.kv_format else None
    if before != after:
        notes.append(f"KV format epoch changes from {_shown(before)} to {_shown(after)}: the candidate starts cold")


def _issues(
    references: References,
    effective: Effective,
    accepted: Collection[str],
    today: date,
    problems: list[str],
    notes: list[str],
) -> None:
    release = references.release
    for issue in release.spec.known_issues or ():
        if not _matches(issue.match, references, effective):
            continue
        fixed = f"; fixed in {issue.fixed_in}" if issue.fixed_in else ""
        text = f"known issue {issue.id} of release {release.metadata.name}: {issue.summary}{fixed}"
        if _is_expired(issue, today):
            notes.append(f"{text} (the entry expired on {issue.expires} and does not count)")
        elif issue.severity == "Warn" or issue.id in accepted:
            notes.append(text)
        else:
            problems.append(f"{text}; choose another release or list {issue.id} in spec.rollout.acceptIssues")


def _is_expired(issue: KnownIssue, today: date) -> bool:
    return issue.expires is not None and date.fromisoformat(issue.expires) < today


def _matches(match: IssueMatch | None, references: References, effective: Effective) -> bool:
    if match is None:
        return True
    spec = references.deployment.spec
    checks = (
        match.architectures is None or references.gpu_class.spec.architecture in match.architectures,
        match.precisions is None or spec.precision in match.precisions,
        match.models is None or any(_named(pattern, spec.model_ref.name) for pattern in match.models),
        all(effective.get(key, None) == value for key, value in _config(match.config).items()),
    )
    return all(checks)


def _config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return config or {}


def _named(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
