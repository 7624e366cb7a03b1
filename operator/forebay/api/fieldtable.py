"""The fields table of a reference page: one row for each field of a structural schema, with its limits in words."""

from collections.abc import Iterator

from forebay.api.rules import VALIDATIONS
from forebay.api.schema import JsonSchema
from forebay.api.shape import INT_OR_STRING, PRESERVE_UNKNOWN

_RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " entries"),
    ("minProperties", "maxProperties", " entries"),
)


def field_table(root: JsonSchema) -> str:
    """Markdown tables of spec and status of the schema of a whole object."""
    parts = []
    for section in ("spec", "status"):
        schema = root["properties"][section]
        rows = "\n".join(_rows(schema, section))
        parts.append(f"### {section}\n\n| field | type | description |\n|---|---|---|\n{rows}\n")
    rules = [f"- {entry['message']}" for entry in root.get(VALIDATIONS, [])]
    if rules:
        parts.append("### Object rules\n\n" + "\n".join(rules) + "\n")
    return "\n".join(parts)


def _rows(schema: JsonSchema, path: str) -> Iterator[str]:
    required = set(schema.get("required", []))
    for name, field in schema.get("properties", {}).items():
        text = " ".join([field.get("description", ""), *_limits(field)])
        mark = " (required)" if name in required else ""
        yield f"| `{path}.{name}`{mark} | {_type(field)} | {_cell(text)} |"
        yield from _rows(_inner(field), f"{path}.{name}{'[]' if field.get('type') == 'array' else ''}")


def _inner(field: JsonSchema) -> JsonSchema:
    inner: JsonSchema = field["items"] if field.get("type") == "array" else field
    return inner


def _type(field: JsonSchema) -> str:
    if field.get(INT_OR_STRING):
        return "quantity"
    if field.get(PRESERVE_UNKNOWN):
        return "map" if field.get("type") == "object" else "any"
    match field["type"]:
        case "array":
            return f"list of {_type(field['items'])}"
        case "object" if "additionalProperties" in field:
            return f"map of {_type(field['additionalProperties'])}"
        case other:
            return str(other)


def _limits(field: JsonSchema) -> Iterator[str]:
    inner = _inner(field)
    if "enum" in inner:
        yield "One of " + ", ".join(f"`{value}`" for value in inner["enum"]) + "."
    for low, high, unit in _RANGES:
        if high in field:
            yield f"{field.get(low, 0)} to {field[high]}{unit}."
    for entry in [*field.get(VALIDATIONS, []), *(inner.get(VALIDATIONS, []) if inner is not field else [])]:
        yield f"Rule: {entry['message']}."


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
