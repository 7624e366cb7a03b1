"""How overrides are merged into a pod template: what a user adds stays, what keeps a pod safe stays too."""

from typing import Any

import pytest

from forebay.operator.desired.overrides import apply_overrides, merge_affinity, override_problem

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PRODUCT = {"key": "product", "operator": "In", "values": ["H100"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
CLASS_AFFINITY = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [PRODUCT]}]}}}


def _template(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"forebay.dev/role": "engine"}}, "spec": {"containers": [], **spec}}


def test_labels_and_annotations_are_added_and_our_labels_stay() -> None:
    merged = apply_overrides(_template(), {"labels": {"team": "a"}, "annotations": {"note": "x"}})
    assert merged["metadata"] == {
        "labels": {"forebay.dev/role": "engine", "team": "a"},
        "annotations": {"note": "x"},
    }


def test_the_node_selector_of_the_class_wins_and_tolerations_add_up() -> None:
    template = _template(nodeSelector={"pool": "gpu"}, tolerations=[{"key": "gpu"}])
    merged = apply_overrides(
        template, {"nodeSelector": {"pool": "other", "zone": "a"}, "tolerations": [{"key": "gpu"}, {"key": "team"}]}
    )
    assert merged["spec"]["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    assert merged["spec"]["tolerations"] == [{"key": "gpu"}, {"key": "team"}]


def test_texts_and_spread_constraints_replace() -> None:
    template = _template(topologySpreadConstraints=[{"topologyKey": "kubernetes.io/hostname"}])
    merged = apply_overrides(
        template, {"priorityClassName": "high", "topologySpreadConstraints": [{"topologyKey": "zone"}]}
    )
    assert merged["spec"]["priorityClassName"] == "high"
    assert merged["spec"]["topologySpreadConstraints"] == [{"topologyKey": "zone"}]


def test_the_template_itself_is_not_changed() -> None:
    template = _template()
    apply_overrides(template, {"labels": {"team": "a"}, "schedulerName": "other"})
    assert template == _template()


def test_every_alternative_of_a_users_affinity_still_needs_the_product_of_the_class() -> None:
    theirs = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}, {"matchFields": []}]}}}
    terms = merge_affinity(CLASS_AFFINITY, theirs)["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [ZONE, PRODUCT]}, {"matchFields": [], "matchExpressions": [PRODUCT]}]


def test_a_preference_of_the_user_keeps_the_requirement_of_the_class() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    merged = merge_affinity(CLASS_AFFINITY, {"nodeAffinity": preferred})["nodeAffinity"]
    assert merged[REQUIRED] == {"nodeSelectorTerms": [{"matchExpressions": [PRODUCT]}]}
    assert (
        merged["preferredDuringSchedulingIgnoredDuringExecution"]
        == preferred["preferredDuringSchedulingIgnoredDuringExecution"]
    )


def test_pod_affinity_is_added_beside_the_class() -> None:
    merged = merge_affinity(CLASS_AFFINITY, {"podAntiAffinity": {"x": 1}})
    assert merged == {**CLASS_AFFINITY, "podAntiAffinity": {"x": 1}}
    assert merge_affinity({}, {"podAffinity": {}}) == {"podAffinity": {}}


@pytest.mark.parametrize(
    "affinity",
    [
        {"nodeAffinity": "x"},
        {"nodeAffinity": {REQUIRED: []}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": ["x"]}}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": "x"}]}}},
    ],
)
def test_an_affinity_of_another_shape_is_refused(affinity: dict[str, Any]) -> None:
    assert override_problem("affinity", affinity) is not None
