"""The AsyncAPI document matches the registry and is valid under AsyncAPI's own schema.

``tests/data/asyncapi-3.0.0.schema.json.gz`` is ``schemas/3.0.0-without-$id.json`` of the npm package @asyncapi/specs
6.11.1 (Apache-2.0), unchanged.
"""

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headrace.schemas.asyncapi import DOCUMENT, asyncapi, render
from headrace.schemas.topics import EVENTS, MODELS, TOPICS

OFFICIAL = jsonschema.Draft7Validator(
    json.loads(gzip.decompress((Path(__file__).parents[1] / "data" / "asyncapi-3.0.0.schema.json.gz").read_bytes()))
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return asyncapi()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for step in reference.removeprefix("#/").split("/"):
        node = node[step]
    return node


def test_the_published_document_matches_the_current_topics_and_models(document: dict[str, Any]) -> None:
    assert DOCUMENT.read_text() == render(document), "run `headrace asyncapi --write schemas/asyncapi.json`"


def test_it_is_an_asyncapi_document_by_the_official_schema(document: dict[str, Any]) -> None:
    assert [error.message for error in OFFICIAL.iter_errors(document)] == []


def test_the_official_schema_detects_a_mistake(document: dict[str, Any]) -> None:
    wrong = copy.deepcopy(document)
    wrong["operations"]["receive.events"]["action"] = "read"
    wrong["channels"]["events"]["bindings"]["kafka"]["partitions"] = 0
    assert len(list(OFFICIAL.iter_errors(wrong))) == 2


def test_every_topic_is_a_channel_with_its_settings_and_every_type_a_message(document: dict[str, Any]) -> None:
    assert list(document["channels"]) == [topic.name for topic in TOPICS]
    assert document["components"]["messages"].keys() == MODELS.keys()
    events = document["channels"]["events"]
    assert set(events["messages"]) == {model.TYPE for model in EVENTS.models}
    assert events["bindings"]["kafka"]["partitions"] == EVENTS.partitions
    assert events["bindings"]["kafka"]["topicConfiguration"]["retention.ms"] == EVENTS.retention_ms


def test_headrace_receives_what_agents_write_and_sends_the_rest(document: dict[str, Any]) -> None:
    received = {name for name, operation in document["operations"].items() if operation["action"] == "receive"}
    assert received == {"receive.events", "receive.feedback", "receive.sdk-stats"}
    assert len(document["operations"]) == len(TOPICS)


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert len(found) > len(MODELS)
    for reference in found:
        assert resolve(document, reference) is not None


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_example_of_a_message_is_valid_under_its_own_schemas(document: dict[str, Any], name: str) -> None:
    message = document["components"]["messages"][name]
    (example,) = message["examples"]
    for part in ("headers", "payload"):
        schema = {**document, **message[part]}
        jsonschema.Draft7Validator(schema).validate(example[part])
