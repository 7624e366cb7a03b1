"""What counts as a difference: our fields, never the API server's; what goes, what stays, what belongs to others."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

import operator_build as build
from forebay.operator.actions import Apply
from forebay.operator.desired.metadata import owner_of
from forebay.operator.diff import compare, difference, first_change, stamp
from forebay.operator.reconcile import reconcile_deployment

OWNER = owner_of(build.deployment())


def _rendered(kind: str) -> dict[str, Any]:
    """A child as it is applied for the first time, of the kind and role engine where there are two."""
    for action in reconcile_deployment(build.snapshot(), build.NOW).actions:
        if isinstance(action, Apply) and action.object["kind"] == kind:
            document = copy.deepcopy(dict(action.object))
            del document["metadata"]["annotations"]["forebay.dev/applied-hash"]
            return document
    raise AssertionError(f"no {kind}")


def _live(document: dict[str, Any]) -> dict[str, Any]:
    """The child as the API server returns it, with the fields that it adds."""
    live = copy.deepcopy(stamp(document))
    live["metadata"] |= {"uid": "u-1", "resourceVersion": "5", "generation": 1, "creationTimestamp": "2027-01-01"}
    live["status"] = {"replicas": 1}
    if live["kind"] == "Deployment":
        pod = live["spec"]["template"]["spec"]
        pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        pod["containers"][0]["startupProbe"]["successThreshold"] = 1
        pod["containers"][0]["startupProbe"]["httpGet"]["scheme"] = "HTTP"
    return live


def test_defaults_of_the_api_server_are_no_difference() -> None:
    document = _rendered("Deployment")
    assert difference(document, _live(document)) is None


def test_another_spelling_of_a_quantity_is_no_difference() -> None:
    document = _rendered("Deployment")
    live = _live(document)
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000m"
    live = _live(document)
    live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    assert difference(document, live) is None


def test_entries_that_somebody_adds_to_a_keyed_list_are_no_difference() -> None:
    document = _rendered("Deployment")
    live = _live(document)
    live["spec"]["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "x"})
    assert difference(document, live) is None


def _container(live: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = live["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda live: live["spec"].update(replicas=7), "spec.replicas"),
        (lambda live: _container(live).update(image="evil"), "spec.template.spec.containers[0].image"),
        (lambda live: _container(live)["args"].append("--x"), "spec.template.spec.containers[0].args"),
        (lambda live: _container(live).pop("startupProbe"), "spec.template.spec.containers[0].startupProbe"),
        (lambda live: _container(live).update(name="other"), "spec.template.spec.containers[0]"),
        (lambda live: live["metadata"]["labels"].pop("forebay.dev/role"), "metadata.labels.forebay.dev/role"),
    ],
)
def test_a_field_of_ours_that_somebody_changed_is_named(edit: Callable[[dict[str, Any]], Any], where: str) -> None:
    document = _rendered("Deployment")
    live = _live(document)
    edit(live)
    assert difference(document, live) == f"{where} was changed"


def test_a_field_that_is_not_rendered_any_more_is_a_difference() -> None:
    document = _rendered("Service")
    live = _live(document)
    del document["spec"]["clusterIP"]
    assert difference(document, live) == "rendered differently"


def test_a_stored_revision_is_never_written_twice() -> None:
    document = _rendered("ControllerRevision")
    live = _live(document)
    live["data"] = {"anything": "else"}
    assert difference(document, live) is None


def test_a_list_without_a_key_must_be_equal_in_length_and_order() -> None:
    assert first_change({"rules": [1, 2]}, {"rules": [2, 1]}) == "rules[0]"
    assert first_change({"rules": [1, 2]}, {"rules": [1, 2, 3]}) == "rules"
    assert first_change({"rules": [1, 2]}, {"rules": [1, 2]}) is None


def test_a_child_that_is_not_wanted_goes_with_its_uid() -> None:
    live = _live(_rendered("Service"))
    change = compare([], [], [live], OWNER)
    assert [(item.kind, item.name, item.uid) for item in change.deletes] == [
        ("Service", live["metadata"]["name"], "u-1")
    ]


def test_a_child_that_is_kept_neither_changes_nor_goes() -> None:
    live = _live(_rendered("Service"))
    change = compare([], [("Service", live["metadata"]["name"])], [live], OWNER)
    assert (change.applies, change.deletes) == ((), ())


def test_an_object_of_an_earlier_owner_is_waited_for_and_never_touched() -> None:
    document = _rendered("Service")
    live = _live(document)
    live["metadata"]["ownerReferences"][0]["uid"] = "someone-else"
    change = compare([document], [], [live], OWNER)
    assert (change.applies, change.deletes) == ((), ())
    assert change.blocked == (f"Service {live['metadata']['name']}",)


def test_force_is_used_only_on_objects_seen_to_be_ours() -> None:
    document = _rendered("Service")
    live = _live(document)
    live["spec"]["ports"] = []
    assert [item.force for item in compare([document], [], [], OWNER).applies] == [False]
    assert [item.force for item in compare([document], [], [live], OWNER).applies] == [True]


def test_an_object_that_is_going_away_is_left_alone() -> None:
    document = _rendered("Service")
    live = _live(document)
    live["metadata"]["deletionTimestamp"] = "2027-01-01T12:00:00Z"
    assert compare([document], [], [live], OWNER).applies == ()
    assert compare([], [], [live], OWNER).deletes == ()


def test_two_spread_constraints_on_one_topology_key_are_compared_each_with_its_own() -> None:
    document = _rendered("Deployment")
    pod = document["spec"]["template"]["spec"]
    soft = pod["topologySpreadConstraints"][0]
    pod["topologySpreadConstraints"] = [{**soft, "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}, soft]
    live = _live(document)
    for constraint in live["spec"]["template"]["spec"]["topologySpreadConstraints"]:
        constraint["nodeTaintsPolicy"] = "Ignore"
    assert difference(document, live) is None
    changed = copy.deepcopy(document)
    changed["spec"]["template"]["spec"]["topologySpreadConstraints"][0]["maxSkew"] = 3
    assert first_change(document, changed) is not None


@pytest.mark.parametrize("empty", [None, "", []])
def test_an_empty_value_that_the_api_server_leaves_out_is_no_difference(empty: object) -> None:
    document = _rendered("Deployment")
    live = _live(document)
    document["spec"]["template"]["spec"]["tolerations"] = [{"key": "gpu", "operator": "Equal", "value": empty}]
    live = _live(document)
    del live["spec"]["template"]["spec"]["tolerations"][0]["value"]
    assert difference(document, live) is None
