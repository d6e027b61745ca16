"""JSON Schemas of every type on the wire, for users who read the topics without headrace's code, and their
compatibility.

``schemas/snapshots/<type>.json`` holds the published schemas. A change is compatible if every document that was valid
stays valid: fields may be added with a default and enums may grow; nothing may be removed, narrowed or made required.
"""

import json
from pathlib import Path
from typing import Any

from headrace.schemas.topics import MODELS

SNAPSHOTS = Path(__file__).parent / "snapshots"


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema (2020-12) of each payload as written, by type name."""
    return {name: model.model_json_schema(mode="serialization") for name, model in sorted(MODELS.items())}


def render(schema: dict[str, Any]) -> str:
    """Return the text of a snapshot. It is stable, so a diff shows what changed."""
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_snapshots(folder: Path = SNAPSHOTS) -> list[Path]:
    """Write one file per type into ``folder``; return the paths of the files that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, schema in json_schemas().items():
        path, text = folder / f"{name}.json", render(schema)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Describe every change in ``new`` that rejects a document allowed by ``old``, or loses part of it.

    The list is empty if ``new`` is compatible. Objects are compared by property and ``$defs`` by name; the type of a
    property may gain alternatives but not lose one.
    """
    found: list[str] = []
    old_objects = {"": old, **old.get("$defs", {})}
    new_objects = {"": new, **new.get("$defs", {})}
    for name, before in old_objects.items():
        where = name or old.get("title", "payload")
        after = new_objects.get(name)
        if after is None:
            found.append(f"{where}: removed")
            continue
        removed = set(before.get("enum", ())) - set(after.get("enum", ()))
        found += [f"{where}: value {value!r} removed" for value in sorted(map(str, removed))]
        required = set(after.get("required", ())) - set(before.get("required", ()))
        found += [f"{where}.{field}: became required" for field in sorted(required)]
        for field, shape in before.get("properties", {}).items():
            shape_now = after.get("properties", {}).get(field)
            if shape_now is None:
                found.append(f"{where}.{field}: removed")
            elif lost := _alternatives(shape) - _alternatives(shape_now):
                found.append(f"{where}.{field}: no longer {', '.join(sorted(lost))}")
    return found


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "const")


def _alternatives(shape: dict[str, Any]) -> set[str]:
    """Return the types that a property may have, each with its bounds."""
    if "anyOf" in shape:
        return set().union(*(_alternatives(option) for option in shape["anyOf"]))
    if "$ref" in shape:
        return {shape["$ref"].rsplit("/", 1)[-1]}
    name = str(shape.get("type", "anything"))
    items = shape.get("items") or shape.get("additionalProperties")
    if isinstance(items, dict):
        name += f" of {'|'.join(sorted(_alternatives(items)))}"
    bounds = [f"{key} {shape[key]}" for key in _BOUNDS if key in shape]
    return {" ".join([name, *bounds])}
