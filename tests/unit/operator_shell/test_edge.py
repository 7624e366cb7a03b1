"""Which keys an event about an object brings up."""

import sim_objects
from forebay.contract.names import LABEL_DEPLOYMENT
from forebay.operator.cluster import DEPLOYMENT_KIND, GPU_CLASS_KIND, MODEL_KIND, RELEASE_KIND
from forebay.operator.edge import POD_SETTLE_S, Edge
from forebay.operator.queue import Key
from sim_objects import NAMESPACE, Obj

CHAT = Key(DEPLOYMENT_KIND, NAMESPACE, "chat")
MODEL = Key(MODEL_KIND, NAMESPACE, "small")
CLASS = Key(GPU_CLASS_KIND, "", "cpu")
RELEASE = Key(RELEASE_KIND, "", "forebay-0.1.0")


def stored(obj: Obj, *, generation: int = 1, uid: str = "") -> Obj:
    uid = uid or f"{obj['kind']}-{obj['metadata']['name']}"
    return {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": "1", "generation": generation}}


def child(kind: str, name: str, owner: str = "chat") -> Obj:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {LABEL_DEPLOYMENT: owner}}
    return {"kind": kind, "metadata": metadata}


def keys(edge: Edge, kind: str, obj: Obj, *, deleted: bool = False) -> set[Key]:
    return {key for key, _ in edge.wishes(kind, obj, deleted=deleted)}


def edge_with_chat() -> Edge:
    edge = Edge()
    edge.wishes(DEPLOYMENT_KIND, stored(sim_objects.deployment()), deleted=False)
    return edge


def test_a_resource_brings_up_itself() -> None:
    edge = Edge()
    assert keys(edge, DEPLOYMENT_KIND, stored(sim_objects.deployment())) == {CHAT}
    assert keys(edge, MODEL_KIND, stored(sim_objects.model())) == {MODEL, CHAT}


def test_what_a_deployment_refers_to_brings_it_up_also_when_it_comes_later_or_goes() -> None:
    edge = edge_with_chat()
    assert keys(edge, GPU_CLASS_KIND, stored(sim_objects.gpu_class())) == {CLASS, CHAT}
    assert keys(edge, RELEASE_KIND, stored(sim_objects.release())) == {RELEASE, CHAT}
    assert keys(edge, RELEASE_KIND, stored(sim_objects.release()), deleted=True) == {RELEASE, CHAT}


def test_a_status_write_on_a_shared_resource_does_not_wake_its_users() -> None:
    edge = edge_with_chat()
    edge.wishes(GPU_CLASS_KIND, stored(sim_objects.gpu_class()), deleted=False)
    assert keys(edge, GPU_CLASS_KIND, stored(sim_objects.gpu_class())) == {CLASS}
    assert keys(edge, GPU_CLASS_KIND, stored(sim_objects.gpu_class(), generation=2)) == {CLASS, CHAT}


def test_a_changed_reference_moves_and_a_deleted_deployment_is_forgotten() -> None:
    edge = edge_with_chat()
    edge.wishes(DEPLOYMENT_KIND, stored(sim_objects.deployment(modelRef={"name": "other"})), deleted=False)
    assert CHAT not in keys(edge, MODEL_KIND, stored(sim_objects.model()))
    assert CHAT in keys(edge, MODEL_KIND, stored(sim_objects.model("other")))
    edge.wishes(DEPLOYMENT_KIND, stored(sim_objects.deployment()), deleted=True)
    assert keys(edge, RELEASE_KIND, stored(sim_objects.release())) == {RELEASE}


def test_every_kind_of_child_brings_up_its_owner() -> None:
    edge = Edge()
    for kind in ("Deployment", "Service", "ConfigMap", "Role", "ControllerRevision", "NetworkPolicy"):
        assert keys(edge, kind, child(kind, "x")) == {CHAT}
        assert keys(edge, kind, child(kind, "x"), deleted=True) == {CHAT}


def test_a_pod_also_makes_its_class_count_again_a_little_later() -> None:
    wishes = edge_with_chat().wishes("Pod", child("Pod", "x"), deleted=False)
    assert dict(wishes) == {CHAT: 0.0, CLASS: POD_SETTLE_S}


def test_the_last_pods_of_a_deleted_deployment_still_make_classes_count_again() -> None:
    edge = edge_with_chat()
    edge.wishes(GPU_CLASS_KIND, stored(sim_objects.gpu_class()), deleted=False)
    edge.wishes(DEPLOYMENT_KIND, stored(sim_objects.deployment()), deleted=True)
    assert CLASS in keys(edge, "Pod", child("Pod", "chat-engine-1"), deleted=True)


def test_an_object_without_our_label_brings_up_nothing() -> None:
    obj = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": NAMESPACE, "uid": "x"}}
    assert Edge().wishes("ConfigMap", obj, deleted=False) == []


def test_a_heartbeat_of_a_node_brings_up_nothing_but_a_label_or_a_lost_device_does() -> None:
    edge = Edge()
    edge.wishes(GPU_CLASS_KIND, stored(sim_objects.gpu_class()), deleted=False)
    node = stored(sim_objects.node())
    assert keys(edge, "Node", node) == {CLASS}
    beat = {**node, "status": {**node["status"], "images": [{"names": ["x"]}]}}
    assert keys(edge, "Node", beat) == set()
    labelled = {**node, "metadata": {**node["metadata"], "labels": {"gpu": "h100"}}}
    assert keys(edge, "Node", labelled) == {CLASS}
    fewer = {**labelled, "status": {**node["status"], "allocatable": {"cpu": "8"}}}
    assert keys(edge, "Node", fewer) == {CLASS}
    assert keys(edge, "Node", fewer, deleted=True) == {CLASS}
