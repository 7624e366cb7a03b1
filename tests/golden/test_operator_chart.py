"""The operator chart rendered by the real Helm: permissions equal the code's table, pods are restricted, no hooks.

`expected` files are compared whole; `python tests/golden/update.py` rewrites them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from chart_render import EXPECTED, VARIANTS, Doc, RenderFailed, find_helm, pick, render, render_text
from forebay.operator.cluster import LEASE_RESOURCE, RESOURCES
from forebay.operator.config import read_config
from forebay.operator.desired.metadata import Owner
from forebay.operator.desired.rbac import router_access

HELM = find_helm()
pytestmark = pytest.mark.skipif(HELM is None, reason="no helm: neither on PATH nor built by `make cluster-tools`")

Permission = tuple[str, str, str]
"""API group, resource with subresource, verb."""


def helm() -> str:
    assert HELM is not None
    return HELM


def permissions(rules: Iterable[Mapping[str, Any]]) -> set[Permission]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used_by_code() -> set[Permission]:
    """What observe, execute and main do, by the resource table, and what routers are given."""
    used: set[Permission] = set()
    for resource in RESOURCES:
        if resource is LEASE_RESOURCE:
            continue
        used |= {(resource.group, resource.plural, verb) for verb in resource.verbs}
        for subresource, verbs in resource.subresource_verbs:
            used |= {(resource.group, f"{resource.plural}/{subresource}", verb) for verb in verbs}
    role = next(doc for doc in router_access(Owner("ns", "name", "uid")) if doc["kind"] == "Role")
    return used | permissions(role["rules"])


def granted(docs: list[Doc], kind: str) -> set[Permission]:
    return {p for doc in pick(docs, kind) for p in permissions(doc["rules"])}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_chart_renders_as_recorded(variant: str) -> None:
    expected = (EXPECTED / f"{variant}.yaml").read_text(encoding="utf-8")
    assert render_text(helm(), *VARIANTS[variant]) == expected


def test_the_cluster_role_is_exactly_what_the_code_uses() -> None:
    assert granted(render(helm()), "ClusterRole") == used_by_code()


def test_in_namespaced_mode_nothing_but_shared_kinds_and_pods_is_cluster_wide() -> None:
    docs = render(helm(), *VARIANTS["namespaced"])
    cluster_wide = granted(docs, "ClusterRole")
    assert {resource for _, resource, _ in cluster_wide} == {
        "enginereleases",
        "enginereleases/status",
        "gpuclasses",
        "gpuclasses/status",
        "nodes",
        "pods",
    }
    for namespace in ("team-a", "team-b"):
        roles = [role for role in pick(docs, "Role") if role["metadata"]["namespace"] == namespace]
        assert permissions(roles[0]["rules"]) | cluster_wide == used_by_code()


def test_the_lease_is_the_only_permission_in_the_own_namespace() -> None:
    roles = pick(render(helm()), "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["forebay-system"]
    verbs = {verb for _, resource, verb in permissions(roles[0]["rules"]) if resource == "leases"}
    assert verbs == set(LEASE_RESOURCE.verbs)
    named = [rule for rule in roles[0]["rules"] if "resourceNames" in rule]
    env = container(render(helm()))["env"]
    lease = next(item["value"] for item in env if item["name"] == "FOREBAY_LEASE_NAME")
    assert [rule["resourceNames"] for rule in named] == [[lease]]


def test_nothing_grants_secrets_wildcards_or_exec() -> None:
    for options in VARIANTS.values():
        docs = render(helm(), *options)
        for group, resource, verb in granted(docs, "ClusterRole") | granted(docs, "Role"):
            assert "*" not in (group, resource, verb)
            assert resource not in {"secrets", "pods/exec"}


def container(docs: list[Doc]) -> Doc:
    spec: Doc = pick(docs, "Deployment")[0]["spec"]["template"]["spec"]
    return dict(spec["containers"][0])


def test_the_pod_is_restricted() -> None:
    spec = pick(render(helm()), "Deployment")[0]["spec"]
    pod = spec["template"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(render(helm()))["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_operator_accepts_the_environment_that_the_chart_sets() -> None:
    for options in VARIANTS.values():
        env = container(render(helm(), *options))["env"]
        config = read_config({item["name"]: item.get("value", "from-the-pod") for item in env})
        assert config.router_image == "forebay/router:0.1.0"
        assert config.namespace == config.identity == "from-the-pod"
        assert config.watch_namespaces == (("team-a", "team-b") if options == VARIANTS["namespaced"] else ())


def test_there_are_no_hooks_and_every_name_follows_release_and_namespace() -> None:
    docs = render(helm(), release="other", namespace="elsewhere")
    for doc in docs:
        assert not any("helm.sh/hook" in key for key in doc["metadata"].get("annotations") or {})
        assert doc["metadata"].get("namespace", "elsewhere") == "elsewhere"
        assert "other-forebay" in doc["metadata"]["name"]
    subjects = [
        s for kind in ("ClusterRoleBinding", "RoleBinding") for doc in pick(docs, kind) for s in doc["subjects"]
    ]
    account = pick(docs, "ServiceAccount")[0]["metadata"]["name"]
    assert {(s["name"], s["namespace"]) for s in subjects} == {(account, "elsewhere")}
    assert pick(docs, "Deployment")[0]["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_selectors_match_the_pod_and_leave_out_what_changes_with_a_release() -> None:
    docs = render(helm(), *VARIANTS["monitored"], *VARIANTS["namespaced"])
    labels = pick(docs, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        pick(docs, "Deployment")[0]["spec"]["selector"]["matchLabels"],
        pick(docs, "Service")[0]["spec"]["selector"],
        pick(docs, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
        pick(docs, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
        pick(docs, "ServiceMonitor")[0]["spec"]["selector"]["matchLabels"],
    ]
    by_value: defaultdict[str, int] = defaultdict(int)
    for selector in selectors:
        assert selector.items() <= labels.items()
        by_value[str(sorted(selector.items()))] += 1
        assert not any("version" in key or "chart" in key for key in selector)
    assert len(by_value) == 1


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("replicas=0", "replicas"),
        ("operator.logLevel=LOUD", "logLevel"),
        ("images.operator.digest=sha256:12", "digest"),
        ("watchNamespace=one", "watchNamespace"),
        ("operator.workers=many", "workers"),
        ("metrics.serviceMonitor.enabled=maybe", "enabled"),
    ],
)
def test_a_bad_value_is_refused_by_name(option: str, named: str) -> None:
    with pytest.raises(RenderFailed, match=named):
        render(helm(), "--set", option)
