"""What makes a new revision, what does not, and how stored revisions are read and kept."""

from typing import Any

import pytest

import operator_build as build
from forebay.contract.versions import RENDERER_VERSION
from forebay.operator.desired.metadata import owner_of
from forebay.operator.intent import Intent, read_intent, render
from forebay.operator.revision import HISTORY, read_revisions, surplus

OWNER = owner_of(build.deployment())


def _intent(parts: dict[str, Any] | None = None, **spec: Any) -> Intent:
    document = build.deployment(**spec)
    found = read_intent(document, build.snapshot(document, **(parts or {})))
    assert isinstance(found, Intent)
    return found


def test_a_revision_is_ten_hex_digits() -> None:
    assert len(_intent().revision) == 10
    assert int(_intent().revision, 16) >= 0


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 3},
        {"router": {"replicas": 2, "apiKeysSecretRef": {"name": "keys"}}},
        {"engine": {}},
        {"scheduling": {}},
    ],
)
def test_fields_that_change_no_engine_pod_make_no_revision(spec: dict[str, Any]) -> None:
    assert _intent(**spec).revision == _intent().revision


def test_another_spelling_of_resources_makes_no_revision() -> None:
    one = _intent(engine={"resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}})
    other = _intent(engine={"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}})
    assert one.revision == other.revision


def test_the_format_that_a_download_chooses_makes_a_revision() -> None:
    source = {"huggingFace": {"repo": "org/tiny", "revision": "a" * 40}}
    either, auto = build.model(source=source), build.model(source=source, format="auto")
    chosen = build.model(source=source, format="safetensors")
    assert _intent({"model": either}).revision == _intent({"model": auto}).revision
    assert _intent({"model": either}).revision != _intent({"model": chosen}).revision


def test_a_format_noted_for_a_mounted_source_restarts_nothing() -> None:
    assert _intent({"model": build.model(format="gguf")}).revision == _intent().revision


def test_a_corrected_size_of_the_weights_restarts_nothing() -> None:
    assert _intent({"model": build.model(sizeBytes=1)}).revision == _intent().revision


@pytest.mark.parametrize(
    "spec",
    [
        {"scheduling": {"maxRunning": 3}},
        {"restartToken": "again"},
        {"engine": {"resources": {"requests": {"cpu": "2"}}}},
        {"engine": {"pod": {"nodeSelector": {"a": "b"}}}},
        {"engine": {"config": {"log_level": "debug"}}},
    ],
)
def test_fields_that_change_engine_pods_make_a_revision(spec: dict[str, Any]) -> None:
    assert _intent(**spec).revision != _intent().revision


def test_another_image_or_default_of_the_release_makes_a_revision() -> None:
    image = {"release": build.release(image="registry.test/engine:0.2.0")}
    default = {"release": build.release(defaults=[{"architecture": "cpu", "values": {"max_running": 17}}])}
    assert len({_intent().revision, _intent(image).revision, _intent(default).revision}) == 3


def test_a_stored_revision_is_read_back_with_its_bytes_and_renderer() -> None:
    intent = _intent()
    document = render(OWNER, intent, 4, build.SETTINGS)
    stored = read_revisions([document], OWNER)[intent.revision]
    assert (stored.number, stored.renderer_version) == (4, RENDERER_VERSION)
    assert [item["kind"] for item in stored.objects] == ["ConfigMap", "Service", "Deployment"]
    assert "replicas" not in stored.objects[2]["spec"]


def test_a_revision_of_another_owner_is_not_read() -> None:
    document = render(OWNER, _intent(), 1, build.SETTINGS)
    document["metadata"]["ownerReferences"][0]["uid"] = "someone-else"
    assert read_revisions([document], OWNER) == {}


def test_only_idle_revisions_beyond_the_history_are_surplus_oldest_first() -> None:
    documents = []
    for number in range(1, HISTORY + 4):
        intent = _intent(scheduling={"maxRunning": number})
        documents.append(render(OWNER, intent, number, build.SETTINGS))
    stored = read_revisions(documents, OWNER)
    names = list(stored)
    assert [item.number for item in surplus(stored, [])] == [1, 2, 3]
    assert [item.number for item in surplus(stored, [names[0]])] == [2, 3]
