"""Published types stay readable: the current models against every committed snapshot."""

import copy
import json
from typing import Any

import pytest

from headrace.schemas.events import ToolReturned
from headrace.schemas.jsonschema import SNAPSHOTS, breaking_changes, json_schemas, render

PUBLISHED = sorted(SNAPSHOTS.glob("*.json"))


def test_every_type_has_a_snapshot() -> None:
    missing = set(json_schemas()) - {path.stem for path in PUBLISHED}
    assert not missing, "run `headrace schemas --write schemas/snapshots`"


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_type_is_still_readable(path: Any) -> None:
    today = json_schemas().get(path.stem)
    assert today is not None, f"{path.stem} was published and is gone: keep it, or write an upcaster and keep its name"
    assert breaking_changes(json.loads(path.read_text()), today) == []


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_snapshots_match_the_current_models(path: Any) -> None:
    assert path.read_text() == render(json_schemas()[path.stem]), "run `headrace schemas --write schemas/snapshots`"


@pytest.fixture
def schema() -> dict[str, Any]:
    return copy.deepcopy(json_schemas()[ToolReturned.TYPE])


def test_a_new_optional_field_is_compatible(schema: dict[str, Any]) -> None:
    changed = copy.deepcopy(schema)
    changed["properties"]["retries"] = {"type": "integer", "default": 0}
    assert breaking_changes(schema, changed) == []


def test_a_removed_field_breaks(schema: dict[str, Any]) -> None:
    changed = copy.deepcopy(schema)
    del changed["properties"]["latency_s"]
    assert breaking_changes(schema, changed) == ["ToolReturned.latency_s: removed"]


def test_a_newly_required_field_breaks(schema: dict[str, Any]) -> None:
    changed = copy.deepcopy(schema)
    changed["required"].append("latency_s")
    assert breaking_changes(schema, changed) == ["ToolReturned.latency_s: became required"]


def test_a_narrowed_type_breaks(schema: dict[str, Any]) -> None:
    changed = copy.deepcopy(schema)
    changed["properties"]["latency_s"] = {"type": "integer"}
    assert breaking_changes(schema, changed)


def test_a_removed_enum_value_breaks(schema: dict[str, Any]) -> None:
    changed = copy.deepcopy(schema)
    changed["$defs"]["ToolErrorClass"]["enum"].remove("timeout")
    assert breaking_changes(schema, changed) == ["ToolErrorClass: value 'timeout' removed"]
