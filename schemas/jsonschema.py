"""JSON Schemas of every type on the wire, for people who read topics without our code, and their compatibility.

``schemas/snapshots/<type>.json`` holds what was published. A change is compatible when every document that was valid
stays valid: fields may be added with a default, enums may grow, nothing may go, narrow or become required.
"""

import json
from pathlib import Path
from typing import Any

from headrace.schemas.topics import MODELS

SNAPSHOTS = Path(__file__).parent / "snapshots"


def json_schemas() -> dict[str, dict[str, Any]]:
    """Type name → JSON Schema (2020-12) of its payload as written."""
    return {name: model.model_json_schema(mode="serialization") for name, model in sorted(MODELS.items())}


def render(schema: dict[str, Any]) -> str:
    """The text of a snapshot: stable, so that a diff shows what changed."""
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_snapshots(folder: Path = SNAPSHOTS) -> list[Path]:
    """Write one file a type into ``folder``; returns what changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, schema in json_schemas().items():
        path, text = folder / f"{name}.json", render(schema)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What in ``new`` would refuse or lose a document that ``old`` allowed; empty where compatible.

    Compares objects by property, ``$defs`` by name; a property's type may gain alternatives but not lose one.
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
        gone = set(before.get("enum", ())) - set(after.get("enum", ()))
        found += [f"{where}: value {value!r} removed" for value in sorted(map(str, gone))]
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
    """The types that a property may have, each with what bounds it."""
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
