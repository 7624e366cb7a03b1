"""Plans to simulate: three fixed scripts, and random ones by seed.

A random plan creates the resources in any order, edits the deployment while the previous edit is still rolling out,
takes edits back, breaks a revision and fixes it, scales, deletes, creates again, on a bad network, with processes that
die. Its last edit is always one that can be realised, so every run has an end state to check.
"""

import random
from collections.abc import Callable

import sim_objects
from fake_cluster import Obj
from forebay.operator.cluster import DEPLOYMENT_KIND, FOREBAY_API
from sim_harness import GENTLE, Plan, Simulation, Step
from sim_network import GOOD, NetworkPolicy
from sim_objects import NAME, NAMESPACE
from sim_world import WorldPolicy

BROKEN_MODEL = "broken"
"""A model whose pods never become ready."""


def create_step(delay_s: float = 1.0) -> Step:
    """All resources at once."""
    return Step(delay_s, "create all", lambda sim: _create(sim, _resources()))


def change_step(delay_s: float = 60.0) -> Step:
    """A change that makes a new revision."""
    return Step(delay_s, "restartToken: b", lambda sim: sim.edit(restartToken="b"))


def delete_step(delay_s: float = 60.0) -> Step:
    """The deployment goes."""
    return Step(delay_s, "delete", lambda sim: sim.delete())


FIXED = {
    "create": (create_step(),),
    "change": (create_step(), change_step()),
    "delete": (create_step(), delete_step()),
    "delete during a change": (create_step(), change_step(), delete_step(2.5)),
}
"""Scripts whose every write is a point at which the operator is killed, by name."""


def random_plan(seed: int) -> Plan:
    """The plan of a seed; the same one every time."""
    rng = random.Random(seed)
    script = _creation(rng)
    for _ in range(rng.randrange(1, 6)):
        script.append(_edit(rng))
    script.extend(_ending(rng))
    bad = rng.random() < 0.7
    network = NetworkPolicy(
        latency_s=rng.choice((0.01, 0.1, 0.5)),
        lost_requests=rng.choice((0.0, 0.01, 0.05)) if bad else 0.0,
        lost_answers=rng.choice((0.0, 0.01, 0.05)) if bad else 0.0,
        watch_delay_s=rng.choice((0.1, 1.0, 5.0)),
        dropped_events=rng.choice((0.0, 0.1, 0.5)) if bad else 0.0,
        repeated_events=rng.choice((0.0, 0.2)),
    )
    deadly = rng.random() < 0.25
    return Plan(
        seed=seed,
        script=script,
        network=network if bad else GOOD,
        world=WorldPolicy(pod_deaths_per_s=rng.choice((0.02, 0.1))) if deadly else GENTLE,
        kill_rate=rng.choice((0.0, 0.05, 0.2)),
        router_errors=rng.choice((0.0, 0.0, 0.2)),
    )


def _resources() -> list[Obj]:
    return [
        sim_objects.gpu_class(),
        sim_objects.release(),
        sim_objects.release("forebay-0.1.1", "forebay/engine:0.1.1"),
        sim_objects.model(),
        sim_objects.model(BROKEN_MODEL),
        sim_objects.deployment(),
    ]


def _create(sim: Simulation, objects: list[Obj]) -> None:
    for obj in objects:
        sim.api.create(obj)


def _creation(rng: random.Random) -> list[Step]:
    """References may come after the deployment that names them."""
    resources = _resources()
    rng.shuffle(resources)
    return [
        Step(
            rng.choice((0.0, 0.5, 4.0)),
            f"create {obj['kind']}/{obj['metadata']['name']}",
            lambda sim, obj=obj: _create(sim, [obj]),  # type: ignore[misc]  # mypy has no type for a default argument
        )
        for obj in resources
    ]


_CHOICES: tuple[tuple[str, Callable[[random.Random], dict[str, object]]], ...] = (
    ("scale", lambda rng: {"replicas": rng.randrange(1, 4)}),
    ("restart", lambda rng: {"restartToken": rng.choice("abc")}),
    ("configure", lambda rng: {"scheduling": {"maxRunning": rng.choice((4, 8, 16))}}),
    ("release", lambda rng: {"engineReleaseRef": {"name": rng.choice(("forebay-0.1.0", "forebay-0.1.1"))}}),
    ("break", lambda rng: {"modelRef": {"name": BROKEN_MODEL}}),  # noqa: ARG005 - one signature for all choices
    ("fix", lambda rng: {"modelRef": {"name": "small"}}),  # noqa: ARG005
    ("dangle", lambda rng: {"modelRef": {"name": "missing"}}),  # noqa: ARG005
    ("policy", lambda rng: {"rollout": rng.choice((sim_objects.AT_ONCE, sim_objects.STAGED))}),
    ("router", lambda rng: {"router": {"replicas": rng.randrange(1, 3)}}),
)


def _edit(rng: random.Random) -> Step:
    name, choose = rng.choice(_CHOICES)
    fields = choose(rng)
    return Step(rng.choice((0.2, 2.0, 6.0, 15.0, 60.0)), f"{name}: {fields}", lambda sim: sim.edit(**fields))


def _ending(rng: random.Random) -> list[Step]:
    """The last word of the user: a deployment that can be realised, none at all, none for a while, or no replicas."""
    good = Step(rng.choice((0.5, 5.0, 20.0)), "make good", lambda sim: sim.edit(modelRef={"name": "small"}, replicas=2))
    delete = Step(rng.choice((0.5, 5.0, 30.0)), "delete", lambda sim: sim.delete())
    again = Step(rng.choice((0.0, 0.3, 10.0)), "create again", _create_again)
    match rng.randrange(6):
        case 0:
            return [good, delete]
        case 1:
            return [delete, again]
        case 2:
            return [good, Step(rng.choice((1.0, 30.0)), "scale to zero", lambda sim: sim.edit(replicas=0))]
    return [good]


def _create_again(sim: Simulation) -> None:
    assert sim.api.get(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME) is None
    _create(sim, [sim_objects.deployment(replicas=2)])
