"""Every type has one example, which is a valid record of its topic."""

import json
from itertools import pairwise

import jsonschema
import pytest

from headrace.schemas.examples import EXAMPLES, Example
from headrace.schemas.jsonschema import SNAPSHOTS
from headrace.schemas.topics import EVENTS, MODELS
from headrace.schemas.wire import decode

BY_TYPE = [pytest.param(example, id=name) for name, example in EXAMPLES.items()]


def test_every_type_has_an_example() -> None:
    assert set(EXAMPLES) == set(MODELS)


@pytest.mark.parametrize("example", BY_TYPE)
def test_an_example_survives_the_wire(example: Example) -> None:
    message = example.message
    assert decode(message.headers, message.value) == (example.envelope, example.payload)


@pytest.mark.parametrize("example", BY_TYPE)
def test_an_example_matches_the_published_schema(example: Example) -> None:
    schema = json.loads((SNAPSHOTS / f"{example.payload.TYPE}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(example.message.value))


@pytest.mark.parametrize("example", BY_TYPE)
def test_an_example_belongs_to_its_types_topic_and_is_small(example: Example) -> None:
    assert type(example.payload) in example.topic.models
    assert len(example.message.value) < 2500


def test_events_come_in_order_under_one_trajectory() -> None:
    story = [
        example.envelope
        for example in EXAMPLES.values()
        if example.topic is EVENTS and example.envelope.sequence is not None
    ]
    assert len({envelope.subject for envelope in story}) == 1
    assert all(after.sequence == (before.sequence or 0) + 1 for before, after in pairwise(story))
