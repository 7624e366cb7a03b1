"""One simulated life of the operator: a user's script, a world, a bad network, and processes that die.

The controller that runs here is the one of the real process. After the script the world calms down; then the state
must come to rest, be what the user asked for, and cost no further write. While it runs, every change is held against
the promise that a deployment once servable stays so.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import sim_objects
from fake_cluster import Change, FakeCluster, Json, labels_match
from forebay.contract.names import LABEL_DEPLOYMENT
from forebay.operator.cluster import DEPLOYMENT_KIND, FOREBAY_API
from forebay.operator.config import OperatorConfig
from forebay.operator.controller import Controller, Outside
from forebay.operator.lease import LeadershipLost
from forebay.operator.metrics import Metrics
from sim_network import GOOD, FakeClient, NetworkPolicy, Watch, Write
from sim_objects import NAME, NAMESPACE, Obj, condition
from sim_routers import Routers
from sim_world import World, WorldPolicy
from virtual_loop import VirtualClock, VirtualLoop, run_virtual

RESYNC_S = 30.0
QUIET_S = 50.0
"""Longer than a full look at everything, which is spread over one and a half periods."""
MAX_SETTLE_S = 1800.0
CONFIG = OperatorConfig(router_image="forebay/router:0.1.0", resync_s=RESYNC_S, workers=2)


GENTLE = WorldPolicy()


class Violation(AssertionError):
    """A promise of the operator was broken; the message ends with the list of events."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something the user does `delay_s` after the step before."""

    delay_s: float
    what: str
    act: Callable[["Simulation"], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation. `kill_after` counts all writes so far; `kill_rate` kills after any write by chance."""

    seed: int
    script: Sequence[Step]
    network: NetworkPolicy = GOOD
    world: WorldPolicy = GENTLE
    kill_after: frozenset[int] = frozenset()
    kill_rate: float = 0.0
    router_errors: float = 0.0


@dataclass(slots=True)
class _Process:
    name: str
    controller: Controller
    client: FakeClient
    watch: Watch
    task: asyncio.Task[None]


@dataclass(slots=True)
class Result:
    """How a simulation ended."""

    writes: int
    kills: int
    passes_s: float
    objects: list[Obj]
    events: list[str] = field(default_factory=list)


class Simulation:
    """Runs one plan; use `simulate`."""

    def __init__(self, plan: Plan, loop: VirtualLoop) -> None:
        self._plan = plan
        self._loop = loop
        self._clock = VirtualClock(loop)
        self.rng = random.Random(plan.seed)
        self.api = FakeCluster(self._now)
        self.world = World(self.api, loop, random.Random(plan.seed + 1), plan.world)
        self._routers = Routers(
            self.world, random.Random(plan.seed + 2), view_delay_s=1.0, error_rate=plan.router_errors
        )
        self._network = plan.network
        self._process: _Process | None = None
        self._starts = 0
        self._kills = 0
        self._writes = 0
        self._kill_rate = plan.kill_rate
        self._last_write_s = 0.0
        self._was_servable = False
        self._floor_applies = True
        self.events: list[str] = []
        self.broken: Violation | None = None
        self.api.subscribe(self._changed)
        self.world.on_acted(self._check_floor)

    async def run(self) -> Result:
        """The whole life; raises `Violation`."""
        node = sim_objects.node()
        self.api.set_status(self.api.create(node), node["status"])
        self._start()
        for step in self._plan.script:
            await asyncio.sleep(step.delay_s)
            self._note(f"user: {step.what}")
            step.act(self)
        self._calm()
        await self._settle()
        await self._rest()
        return Result(self._writes, self._kills, self._loop.time(), self.api.objects(), self.events)

    def kill(self, why: str) -> None:
        """The operator's process dies now; another one starts a little later."""
        process = self._process
        if process is None:
            return
        self._process = None
        self._kills += 1
        self._note(f"kill {process.name}: {why}")
        process.client.is_cut = True
        process.watch.cut()
        self._loop.call_soon(process.task.cancel)
        self._loop.call_later(self.rng.uniform(0.1, 3.0), self._start)

    def edit(self, **spec: object) -> None:
        """The user changes fields of the deployment's spec."""
        live = self.api.get(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME)
        assert live is not None
        if spec.get("replicas", live["spec"]["replicas"]) == 0:
            self._was_servable = False
        self.api.replace({**live, "spec": {**live["spec"], **spec}})

    def delete(self) -> None:
        """The user deletes the deployment."""
        self._was_servable = False
        self.api.delete(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME)

    def _start(self) -> None:
        self._starts += 1
        # A container that restarts keeps its pod's name; a new pod has a new one and must wait for the Lease.
        fresh = self._process is None and self.rng.random() < 0.5
        name = f"operator-{self._starts if fresh else 0}"
        client = FakeClient(self.api, name, self.rng, self._network, self._wrote)
        config = replace(CONFIG, identity=name)
        controller = Controller(config, Outside(client, self._routers, self._clock, Metrics()))

        def deliver(kind: str, obj: Json, deleted: bool) -> None:
            controller.on_event(kind, obj, deleted=deleted)

        watch = Watch(self.api, self.rng, self._network, deliver)
        task = self._loop.create_task(controller.run())
        self._process = _Process(name, controller, client, watch, task)
        self._note(f"start {name}")
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if not isinstance(error, LeadershipLost):
            self._break(f"the controller crashed: {error!r}")
        self.kill(f"ended: {error!r}")

    def _wrote(self, write: Write) -> None:
        self._writes += 1
        self._last_write_s = self._loop.time()
        self._note(f"write {self._writes}: {write}")
        if self._writes in self._plan.kill_after or (self._kill_rate and self.rng.random() < self._kill_rate):
            self.kill(f"after write {self._writes}")

    def _calm(self) -> None:
        self._note("calm")
        self._network = GOOD
        self._kill_rate = 0.0
        self.world.calm()
        self._routers.calm()
        if self._process is not None:
            self._process.client.heal()
            self._process.watch.heal()

    async def _settle(self) -> None:
        start = self._loop.time()
        while not self.world.is_quiet or self._loop.time() - max(self._last_write_s, start) < QUIET_S:
            if self._loop.time() - start > MAX_SETTLE_S:
                raise self.violation(f"not at rest after {MAX_SETTLE_S:.0f} s")
            await asyncio.sleep(5.0)
        self._check_end()

    async def _rest(self) -> None:
        """Two full looks at everything later nothing was written."""
        before = self._writes
        await asyncio.sleep(2 * RESYNC_S)
        if self._writes != before:
            raise self.violation("an object at rest was written")

    def _check_end(self) -> None:
        live = self.api.get(FOREBAY_API, DEPLOYMENT_KIND, NAMESPACE, NAME)
        children = [obj for obj in self.api.objects() if labels_match(obj, f"{LABEL_DEPLOYMENT}={NAME}")]
        if live is not None:
            self._check_realised(live, children)
        elif children:
            raise self.violation(f"left after deletion: {[c['metadata']['name'] for c in children]}")

    def _check_realised(self, live: Obj, children: list[Obj]) -> None:
        replicas = live["spec"]["replicas"]
        for kind, wanted in (("Ready", "True"), ("Servable", "True" if replicas else "False")):
            found = condition(live, kind)
            if (found.get("status"), found.get("observedGeneration")) != (wanted, live["metadata"]["generation"]):
                raise self.violation(f"{kind} is {found}")
        engines = [c for c in children if c["kind"] == "Deployment" and "-engine-" in c["metadata"]["name"]]
        if [e["spec"]["replicas"] for e in engines] != [replicas]:
            raise self.violation(f"engines: {[(e['metadata']['name'], e['spec']['replicas']) for e in engines]}")
        if replicas and not self._routers.serves(NAMESPACE, NAME):
            raise self.violation("no router reaches an engine")

    def _changed(self, change: Change) -> None:
        obj = change.obj
        if obj["kind"] == DEPLOYMENT_KIND and change.type != "DELETED":
            servable = condition(obj, "Servable").get("status")
            if servable == "True" and obj["spec"]["replicas"]:
                self._was_servable = True
            elif self._was_servable and not self._plan.world.pod_deaths_per_s:
                self._break(f"Servable became {servable or 'absent'}: {condition(obj, 'Servable')}")
        self._check_floor()

    def _check_floor(self) -> None:
        promised = self._was_servable and not self._plan.world.pod_deaths_per_s
        if promised and not self._routers.serves(NAMESPACE, NAME):
            self._break("requests fail: a ready router reaches no ready engine")

    def _break(self, what: str) -> None:
        """A promise was broken inside a callback: keep the first one and end the run."""
        if self.broken is None:
            self.broken = self.violation(what)
            self._loop.stop()

    def violation(self, what: str) -> Violation:
        """The error to raise, with everything needed to repeat the run."""
        return Violation(f"seed {self._plan.seed}: {what}\n" + "\n".join(self.events[-200:]))

    def _note(self, text: str) -> None:
        self.events.append(f"{self._loop.time():8.2f} {text}")

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def simulate(plan: Plan) -> Result:
    """Run one plan from start to end; raises `Violation`."""
    loop = VirtualLoop()
    simulation = Simulation(plan, loop)
    try:
        return run_virtual(simulation.run(), loop)
    except RuntimeError:
        if simulation.broken is None:
            raise
        raise simulation.broken from None
