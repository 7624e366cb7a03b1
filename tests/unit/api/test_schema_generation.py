"""What turns models into structural schemas and CRDs keeps Kubernetes' rules and refuses what has no place there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from forebay.api.common import Bytes
from forebay.api.crd import MAX_CRD_BYTES, crd, main, page_path, render, root_schema
from forebay.api.kinds import KINDS, Kind
from forebay.api.schema import SchemaError, structural
from forebay.api.shape import ATOMIC_LIST, MapKey, Shape

ROOT = Path(__file__).resolve().parents[3]


class Item(Shape):
    """An item with an optional name, for lists."""

    name: Annotated[str, Field(max_length=8)] | None = None
    """Its name."""


class Unbounded(Shape):
    text: str


class UnboundedList(Shape):
    items: Annotated[list[Bytes], ATOMIC_LIST]


class ListWithoutMergeRule(Shape):
    items: Annotated[list[Bytes], Field(max_length=3)]


class ListWithOptionalKey(Shape):
    items: Annotated[list[Item], Field(max_length=3), MapKey("name")]


class UnboundedMap(Shape):
    labels: dict[str, Bytes]


class Union(Shape):
    size: Bytes | Annotated[str, Field(max_length=8)]


class Recursive(Shape):
    inner: "Recursive | None" = None


class Pair(Shape):
    pair: Annotated[tuple[Bytes, Bytes], Field(max_length=2)]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Unbounded, "Unbounded.text: a string needs maxLength"),
        (UnboundedList, "UnboundedList.items: a list needs maxItems"),
        (ListWithoutMergeRule, "a list needs a merge rule"),
        (ListWithOptionalKey, "merge key name must be a required field"),
        (UnboundedMap, "a map needs maxProperties"),
        (Union, "a union is one optional sub-object for each variant"),
        (Recursive, "recursion"),
        (Pair, "keyword prefixItems"),
    ],
    ids=lambda item: item.__name__ if isinstance(item, type) else "",
)
def test_a_model_that_kubernetes_cannot_hold_is_refused_with_the_field(model: type[Shape], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        structural(model)


def test_an_optional_field_is_plain_and_not_required() -> None:
    assert structural(Item) == {
        "description": "An item with an optional name, for lists.",
        "type": "object",
        "properties": {"name": {"description": "Its name.", "type": "string", "maxLength": 8}},
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_schema_is_structural_and_bounded(kind: Kind) -> None:
    for path, node in nodes(root_schema(kind), kind.name):
        assert "default" not in node, path
        assert not {"anyOf", "oneOf", "$ref", "title", "nullable"} & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_says_what_it_is_for(kind: Kind) -> None:
    schema = root_schema(kind)
    for section in ("spec", "status"):
        for path, node in nodes(schema["properties"][section], section):
            for name, field in node.get("properties", {}).items():
                assert field.get("description"), f"{path}.{name}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_crd_is_small_and_has_a_status_subresource(kind: Kind) -> None:
    document = crd(kind)
    (version,) = document["spec"]["versions"]
    assert len(yaml.safe_dump(document)) < MAX_CRD_BYTES
    assert "status" in version["subresources"]
    first = {"Rollout": "Deployment", "RolloutAction": "Rollout"}.get(kind.name, "Ready")
    assert version["additionalPrinterColumns"][0]["name"] == first
    assert version["additionalPrinterColumns"][-1]["name"] == "Age"


def test_only_deployments_scale() -> None:
    scaled = {kind.name for kind in KINDS if "scale" in crd(kind)["spec"]["versions"][0]["subresources"]}
    assert scaled == {"ModelDeployment"}


def test_the_files_in_the_repository_are_what_the_models_say() -> None:
    assert main(["--check", "--root", str(ROOT)]) == 0


def test_a_changed_file_is_found_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        page = tmp_path / page_path(kind)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text((ROOT / page_path(kind)).read_text("utf-8"), "utf-8")
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
    (tmp_path / "crds" / "forebay.dev_models.yaml").write_text("kind: Nothing\n", "utf-8")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "crds/forebay.dev_models.yaml" in capsys.readouterr().err


def test_the_chart_keeps_the_definitions_when_it_is_removed() -> None:
    pages = {page_path(kind): (ROOT / page_path(kind)).read_text("utf-8") for kind in KINDS}
    charted = [text for path, text in render(pages).items() if path.startswith("charts/")]
    assert len(charted) == len(KINDS)
    for text in charted:
        assert "{{" not in text
        assert yaml.safe_load(text)["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    pages = {page_path(kind): "# A page\n" for kind in KINDS}
    with pytest.raises(ValueError, match="no place for the fields table"):
        render(pages)


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from nodes(inner, f"{path}[]")
