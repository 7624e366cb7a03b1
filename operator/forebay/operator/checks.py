"""The checks that a spec passes before anything is created: an ordered chain that stops at the first problem.

Each check is a pure function of the references and the effective configuration. A failed check touches nothing that
runs: it becomes the condition `Stalled` with the field and the fix. Called by `reconcile`.
"""

from collections.abc import Callable
from fractions import Fraction

from forebay.api.modeldeployment import ModelDeployment
from forebay.contract.errors import InvalidSpec
from forebay.operator.conditions import Reason
from forebay.operator.desired.overrides import ALLOWED_OVERRIDES, override_problem
from forebay.operator.effective import Effective, check_release
from forebay.operator.quantity import format_bytes, parse_quantity
from forebay.operator.references import Problem, References
from forebay.operator.rollout.policy import problem_of, read_policy

Check = Callable[[References], Problem | None]


def check_references(references: References) -> Problem | None:
    """The first problem among checks that need no effective configuration."""
    return next((problem for check in CHECKS if (problem := check(references)) is not None), None)


def check_rollout(deployment: ModelDeployment) -> Problem | None:
    """Whether the steps of `spec.rollout` contradict each other."""
    try:
        found = problem_of(read_policy(deployment.spec.rollout).steps)
    except InvalidSpec as error:
        return Problem(Reason.INVALID_SPEC, f"spec.rollout.steps: {error.message}")
    return None if found is None else Problem(Reason.INVALID_SPEC, f"spec.rollout.{found[0]}: {found[1]}")


def check_memory(references: References, effective: Effective) -> Problem | None:
    """Whether weights and KV cache can fit into one engine at all.

    Compares a lower bound (file size of the weights plus `kv_cache_bytes`) with the pod's memory limit on cpu and with
    the memory of its devices elsewhere; unknown sizes pass.
    """
    gpu = references.gpu_class.spec
    weights = references.checkpoint.size_bytes or 0
    cache = int(effective.get("kv_cache_bytes", 0))
    needed = f"{format_bytes(weights)} of weights and {format_bytes(cache)} of KV cache"
    if gpu.resource is not None and gpu.memory_bytes is not None:
        room = gpu.memory_bytes * gpu.resource.count
        if weights + cache <= room:
            return None
        return Problem(
            Reason.INSUFFICIENT_MEMORY,
            f"spec.gpuClassRef: {needed} do not fit into {format_bytes(room)} of device memory of GPUClass "
            f"{references.gpu_class.metadata.name}; lower spec.cache.device.bytes or use a larger class",
        )
    limit = _memory_limit(references)
    if limit is not None and weights + cache > limit:
        return Problem(
            Reason.INSUFFICIENT_MEMORY,
            f"spec.engine.resources.limits.memory: {needed} do not fit into {format_bytes(limit)}; raise the limit or "
            "lower spec.cache.device.bytes",
        )
    most = gpu.memory_bytes
    asked = max(limit or 0, _memory_request(references) or 0, weights + cache)
    if most is not None and asked > most:
        return Problem(
            Reason.INSUFFICIENT_MEMORY,
            f"spec.engine.resources: one engine needs {format_bytes(asked)} of memory ({needed}), GPUClass "
            f"{references.gpu_class.metadata.name} allows {format_bytes(most)}; ask for less or raise its memoryBytes",
        )
    return None


def _memory_limit(references: References) -> Fraction | None:
    engine = references.deployment.spec.engine
    limits = (engine.resources.limits if engine and engine.resources else None) or {}
    return parse_quantity(limits["memory"]) if "memory" in limits else None


def _memory_request(references: References) -> Fraction | None:
    engine = references.deployment.spec.engine
    requests = (engine.resources.requests if engine and engine.resources else None) or {}
    return parse_quantity(requests["memory"]) if "memory" in requests else None


def _licence_is_accepted(references: References) -> Problem | None:
    licence = references.model.spec.license
    if licence.accepted:
        return None
    return Problem(
        Reason.LICENSE_NOT_ACCEPTED,
        f"spec.modelRef: the licence {licence.spdx} of Model {references.model.metadata.name} is not accepted; read it "
        "and set spec.license.accepted to true in the Model",
    )


def _precision_on_class(references: References) -> Problem | None:
    precision, gpu_class = references.deployment.spec.precision, references.gpu_class
    if precision in gpu_class.spec.precisions:
        return None
    return Problem(
        Reason.PRECISION_NOT_ON_GPU_CLASS,
        f"spec.precision: GPUClass {gpu_class.metadata.name} does not list {precision}; use one of: "
        f"{', '.join(gpu_class.spec.precisions)}",
    )


def _architecture_is_compiled(references: References) -> Problem | None:
    architecture, release = references.gpu_class.spec.architecture, references.release
    if architecture in release.spec.architectures:
        return None
    return Problem(
        Reason.ARCHITECTURE_NOT_COMPILED,
        f"spec.engineReleaseRef: EngineRelease {release.metadata.name} is not compiled for {architecture} of GPUClass "
        f"{references.gpu_class.metadata.name}, only for: {', '.join(release.spec.architectures)}; use another release",
    )


def _precision_in_release(references: References) -> Problem | None:
    precision, architecture = references.deployment.spec.precision, references.gpu_class.spec.architecture
    release = references.release
    runs = next((e.precisions for e in release.spec.precisions if e.architecture == architecture), [])
    if precision in runs:
        return None
    return Problem(
        Reason.PRECISION_NOT_IN_RELEASE,
        f"spec.precision: EngineRelease {release.metadata.name} does not run {precision} on {architecture}; use one "
        f"of: {', '.join(runs)}",
    )


def _release_is_sound(references: References) -> Problem | None:
    problem = check_release(references.release)
    if problem is None:
        return None
    return Problem(
        Reason.INVALID_REFERENCE,
        f"spec.engineReleaseRef: EngineRelease {references.release.metadata.name} is not valid: {problem.message}",
    )


def _pod_overrides_are_allowed(references: References) -> Problem | None:
    engine = references.deployment.spec.engine
    overrides = (engine.pod if engine else None) or {}
    for key in sorted(overrides):
        field = f"spec.engine.pod.{key}"
        if key not in ALLOWED_OVERRIDES:
            return Problem(
                Reason.POD_OVERRIDE_NOT_ALLOWED,
                f"{field}: this pod field cannot be overridden; allowed are: {', '.join(sorted(ALLOWED_OVERRIDES))}",
            )
        wrong = override_problem(key, overrides[key])
        if wrong is not None:
            return Problem(Reason.POD_OVERRIDE_NOT_ALLOWED, f"{field}: {wrong}")
    return None


CHECKS: tuple[Check, ...] = (
    _licence_is_accepted,
    _precision_on_class,
    _release_is_sound,
    _architecture_is_compiled,
    _precision_in_release,
    _pod_overrides_are_allowed,
)
"""All checks, in the order in which they are reported."""
