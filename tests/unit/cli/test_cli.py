"""The command line over a cluster in memory: what it prints, creates and refuses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import operator_build as build
from forebay.cli import __main__ as entry
from forebay.cli.kubectl import CommandFailed, Kubectl
from forebay.cli.plan import lines, predict, read_files
from forebay.cli.show import deployment_lines, is_over, rollout_lines
from forebay.cli.verbs import say
from operator_world import World

TODAY = date(2027, 1, 1)


@dataclass
class WorldCluster:
    """The objects of a `World`, and a judge that gives every action the same verdict."""

    world: World
    verdict: dict[str, Any] = field(default_factory=lambda: {"phase": "Accepted", "message": "the run waits"})
    created: list[dict[str, Any]] = field(default_factory=list)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object."""
        match kind:
            case "modeldeployment":
                return self.world.document if name == "chat" else None
            case "rolloutaction":
                return {"status": self.verdict}
            case "enginerelease" | "model" | "gpuclass":
                return {"enginerelease": build.release(), "model": build.model(), "gpuclass": build.gpu_class()}[kind]
        return self.world.children.get((kind.capitalize(), name))

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind."""
        assert kind != "controllerrevision" or selector == "forebay.dev/deployment=chat"
        if kind == "modeldeployment":
            return [self.world.document]
        return [item for (found, _), item in self.world.children.items() if found.lower() == kind]

    def create(self, document: Mapping[str, Any], *, dry_run: bool) -> dict[str, Any]:
        """Keep what is created."""
        made = {**document, "metadata": {**document["metadata"], "name": "made"}}
        if not dry_run:
            self.created.append(made)
        return made


@pytest.fixture
def cluster() -> WorldCluster:
    """A deployment in the middle of a change."""
    world = World()
    world.settle()
    world.edit(lambda spec: spec.update(restartToken="two"))
    world.open_run()
    world.operator_pass()
    return WorldCluster(world)


def test_a_verb_is_bound_to_the_run_by_name_and_uid(cluster: WorldCluster) -> None:
    text = say(cluster, "pause", "chat", reason="looks slow", step=None, dry_run=False)
    assert text == "the run waits"
    (action,) = cluster.created
    rollout = cluster.world.rollouts()[-1]["metadata"]
    assert action["spec"] == {
        "rolloutRef": {"name": rollout["name"], "uid": rollout["uid"]},
        "verb": "pause",
        "reason": "looks slow",
    }


def test_a_refused_verb_says_why(cluster: WorldCluster) -> None:
    cluster.verdict = {"phase": "Refused", "message": "the run is over"}
    with pytest.raises(CommandFailed, match="the run is over"):
        say(cluster, "abort", "chat", reason="r", step=None, dry_run=False)


def test_an_action_that_nobody_judges_is_not_waited_for_for_ever(cluster: WorldCluster) -> None:
    cluster.verdict = {}
    clock = iter(range(0, 1000, 5))
    with pytest.raises(CommandFailed, match="is the operator running"):
        say(
            cluster,
            "abort",
            "chat",
            reason="r",
            step=None,
            dry_run=False,
            now_s=lambda: float(next(clock)),
            sleep=lambda _: None,
        )


def test_a_dry_run_creates_nothing(cluster: WorldCluster) -> None:
    assert "would say abort" in say(cluster, "abort", "chat", reason="r", step=None, dry_run=True)
    assert cluster.created == []


@pytest.mark.parametrize(("name", "text"), [("other", "does not exist"), ("chat", "no rollout yet")])
def test_a_verb_needs_a_deployment_with_a_run(name: str, text: str) -> None:
    world = World()
    world.settle()
    with pytest.raises(CommandFailed, match=text):
        say(WorldCluster(world), "pause", name, reason="r", step=None, dry_run=False)


def test_the_view_shows_steps_verdicts_and_what_serves(cluster: WorldCluster) -> None:
    rollout = cluster.world.rollouts()[-1]
    text = "\n".join([*deployment_lines(cluster.world.document), *rollout_lines(rollout)])
    for part in ("shop/chat", "serves    revision", "asked for revision", "[>] all", "100% of the pods"):
        assert part in text
    assert not is_over(rollout)


def test_a_plan_from_files_alone_names_the_revision_and_every_value(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([build.deployment(), build.model(), build.gpu_class(), build.release()]))
    found = predict(read_files([file]), None, TODAY)
    assert found.stable is None
    text = "\n".join(lines(found, only_changes=False))
    assert "starts without a rollout" in text
    assert "max_running = 16  (release)" in text


def test_a_plan_predicts_the_revision_that_the_operator_makes(cluster: WorldCluster) -> None:
    found = predict([cluster.world.document], cluster, TODAY)
    assert found.revision == cluster.world.document["status"]["targetRevision"]
    assert found.stable == cluster.world.document["status"]["stableRevision"]
    assert not found.blocked
    assert "a rollout from revision" in lines(found, only_changes=False)[0]


def test_a_plan_shows_a_moved_default_as_blocked(cluster: WorldCluster) -> None:
    values = {"max_running": 64, "kv_cache_bytes": 268435456}
    moved = build.release(
        "v1", image="registry.test/engine:0.2.0", defaults=[{"architecture": "cpu", "values": values}]
    )
    found = predict([cluster.world.document, moved], cluster, TODAY)
    assert found.blocked
    assert "  max_running: 16 -> 64  (a default of the release moved)" in lines(found, only_changes=True)
    assert found.to_json()["changes"] == [{"key": "max_running", "from": 16, "to": 64, "movedDefault": True}]


@pytest.mark.parametrize(
    ("documents", "text"),
    [
        ([], "0 ModelDeployments"),
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}], "apiVersion must be forebay.dev"),
        ([build.deployment(replicas=-1)], "spec.replicas"),
        ([build.deployment()], "ModelNotFound"),
    ],
)
def test_files_that_cannot_be_planned_are_refused_by_name(
    tmp_path: Path, documents: list[dict[str, Any]], text: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    with pytest.raises(CommandFailed, match=text):
        predict(read_files([file]), None, TODAY)


def test_the_program_prints_a_plan_as_json_and_tells_a_held_one_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([build.deployment(), build.model(), build.gpu_class(), build.release()]))
    assert entry.main(["plan", "--offline", "-f", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["deployment"] == "chat"
    assert entry.main(["plan", "--offline", "-f", str(tmp_path / "missing.yaml")]) == 1
    assert "missing.yaml" in capsys.readouterr().err


def test_without_kubectl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandFailed, match="install it"):
        Kubectl().get("modeldeployment", "chat")
