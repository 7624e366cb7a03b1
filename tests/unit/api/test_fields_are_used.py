"""A field is in the schema only when something acts on it: the operator reads every field of every spec."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from forebay.api.kinds import KINDS
from forebay.api.shape import StatusShape

OPERATOR = Path(__file__).resolve().parents[3] / "operator" / "forebay" / "operator"
NOT_READ_BY_NAME = {
    "DeploymentIdentity.uid": "for people: which deployment a kept Rollout was about",
    "Side.release": "for people",
    "Side.config_digest": "for people",
    "RolloutSpec.generation": "for people",
    "RolloutSpec.deployment": "for people; the owner reference says it to the operator",
    "RolloutActionSpec.reason": "goes into the message of an abort as it stands",
    "ConfigKey.description": "for people, shown by kubectl",
    "Toleration.key": "a toleration goes into pods as a whole",
    "Toleration.operator": "a toleration goes into pods as a whole",
    "Toleration.value": "a toleration goes into pods as a whole",
    "Toleration.effect": "a toleration goes into pods as a whole",
}


def test_the_operator_reads_every_field_of_a_spec() -> None:
    read = attributes_read()
    unread = {name for name in spec_fields() if name.partition(".")[2] not in read}
    assert sorted(unread - set(NOT_READ_BY_NAME)) == []


def attributes_read() -> set[str]:
    """Every attribute name in the operator's source that is not called as a method."""
    trees = [ast.parse(path.read_text("utf-8")) for path in OPERATOR.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and id(node) not in called}


def spec_fields() -> set[str]:
    """Shape.field for every field of every spec."""
    found: set[str] = set()

    def visit(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            found.add(f"{model.__name__}.{name}")
            for inner in models_in(field.annotation):
                visit(inner)

    for kind in KINDS:
        for inner in models_in(kind.model.model_fields["spec"].annotation):
            visit(inner)
    return found


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not issubclass(annotation, StatusShape):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)
