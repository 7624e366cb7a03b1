"""The fake API server answers as a real one was recorded to answer, and keeps its own rules."""

import random
from pathlib import Path

import pytest

import sim_objects
from api_script import play
from fake_cluster import Change, FakeCluster, fields_match, labels_match
from fake_defaults import canonical_quantity
from forebay.contract.errors import ApiConflict, ApiGone
from sim_network import GOOD, FakeClient
from virtual_loop import VirtualLoop, run_virtual

RECORDED = Path(__file__).with_name("recorded.txt")
NOW = "2027-01-01T00:00:00Z"


def fake() -> FakeCluster:
    return FakeCluster(lambda: NOW)


def config_map(name: str = "a", **metadata: object) -> sim_objects.Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns", **metadata}}


def test_it_answers_as_a_real_api_server_did() -> None:
    client = FakeClient(fake(), "test", random.Random(1), GOOD, lambda _: None)
    lines = run_virtual(play(client, "NAMESPACE"), VirtualLoop())
    assert lines == RECORDED.read_text(encoding="utf-8").splitlines()


def test_every_change_moves_the_version_and_is_told_once() -> None:
    api = fake()
    told: list[Change] = []
    api.subscribe(told.append)
    made = api.create(config_map())
    api.replace({**made, "data": {"x": "y"}})
    api.replace({**(api.get("v1", "ConfigMap", "ns", "a") or {}), "data": {"x": "y"}})
    api.delete("v1", "ConfigMap", "ns", "a")
    assert [change.type for change in told] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(change.obj["metadata"]["resourceVersion"]) for change in told]
    assert versions == sorted(set(versions))


def test_a_finalizer_holds_an_object_until_it_is_removed() -> None:
    api = fake()
    api.create(config_map(finalizers=["x/y"]))
    api.delete("v1", "ConfigMap", "ns", "a")
    held = api.get("v1", "ConfigMap", "ns", "a")
    assert held is not None
    assert held["metadata"]["deletionTimestamp"] == NOW
    api.replace({**held, "metadata": {**held["metadata"], "finalizers": []}})
    assert api.get("v1", "ConfigMap", "ns", "a") is None


def test_orphans_are_the_objects_whose_owners_are_all_gone() -> None:
    api = fake()
    owner = api.create(config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    api.create(config_map("child", ownerReferences=[reference]))
    api.create(config_map("free"))
    assert api.orphans() == []
    api.delete("v1", "ConfigMap", "ns", "owner")
    assert [obj["metadata"]["name"] for obj in api.orphans()] == ["child"]


def test_a_namesake_has_another_uid() -> None:
    api = fake()
    first = api.create(config_map())
    api.delete("v1", "ConfigMap", "ns", "a")
    second = api.create(config_map())
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    with pytest.raises(ApiConflict):
        api.delete("v1", "ConfigMap", "ns", "a", first["metadata"]["uid"])


def test_stored_objects_are_never_changed_in_place() -> None:
    api = fake()
    before = api.create(sim_objects.deployment())
    copy = repr(before)
    api.apply({**sim_objects.deployment(replicas=5)}, "one", force=True)
    api.patch_status(
        before["apiVersion"],
        "ModelDeployment",
        "apps",
        "chat",
        {"replicas": 1},
        "status",
        api.objects()[0]["metadata"]["resourceVersion"],
    )
    assert repr(before) == copy


def test_what_is_missing_is_gone() -> None:
    with pytest.raises(ApiGone):
        fake().delete("v1", "ConfigMap", "ns", "a")
    with pytest.raises(ApiGone):
        fake().replace(config_map())


def test_selectors_of_labels_and_fields() -> None:
    pod = {"metadata": {"labels": {"a": "1", "b": "2"}}, "status": {"phase": "Running"}, "spec": {"nodeName": "n"}}
    assert labels_match(pod, "a=1,b")
    assert not labels_match(pod, "a=2")
    assert not labels_match(pod, "c")
    assert fields_match(pod, "status.phase=Running,spec.nodeName!=")
    assert not fields_match(pod, "status.phase!=Running")
    assert not fields_match({"metadata": {}, "spec": {}}, "spec.nodeName!=")


@pytest.mark.parametrize(
    ("written", "stored"),
    [("1000m", "1"), ("250m", "250m"), ("1024Mi", "1Gi"), ("1536Mi", "1536Mi"), ("2Gi", "2Gi"), (4, "4"), ("1G", "1G")],
)
def test_quantities_are_stored_in_one_form(written: object, stored: str) -> None:
    assert canonical_quantity(written) == stored
