"""A filter that cannot match any record is refused with suggestions; any other filter is accepted."""

import json

import pytest

from headrace.deploy.tail.fields import check_filters, models_of
from headrace.deploy.tail.filters import Condition, Filters
from headrace.deploy.tail.record import decode_record
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.topics import TOPICS
from tests.deploy.tail.test_line import stored


def check(topic: str, *where: str, **filters: object) -> None:
    conditions = tuple(map(Condition.parse, where))
    check_filters(Filters(conditions=conditions, **filters), topic, models_of(topic))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "where", "expected"),
    [
        ("rewards", "totl>0.5", r"No record of rewards has a field totl: did you mean total\? There are .*components"),
        ("rewards", "components.f_beta.vlue>0", "No record of rewards has a field components.f_beta.vlue"),
        ("trajectories", "started.agnt=search", "No record of trajectories has a field started.agnt"),
        ("rewards", "total>much", "total is a number, but 'much' is not"),
        ("rejected", "reason=stael", r"reason is never 'stael': did you mean stale\? There are "),
        ("rejected", "reason.of=stale", "No record of rejected has a field reason.of"),
        ("replay.x.rewards", "totl>0.5", "No record of replay.x.rewards has a field totl"),
    ],
)
def test_a_filter_that_cannot_match_is_refused(topic: str, where: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check(topic, where)


def test_unknown_types_and_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"No record of events has the type 'tool.cald': did you mean tool.called\?"):
        check("events", types=("tool.cald",))
    with pytest.raises(ValueError, match=r"No record of rewards has the type 'tool.called'"):
        check("rewards", types=("tool.called",))
    with pytest.raises(ValueError, match="Records of weights have no field agent"):
        check("weights", agent="search")
    with pytest.raises(ValueError, match="No record of events has a field outcome"):
        check("events", "outcome>0", types=("tool.called",))
    check("events", "outcome>0")
    check("events", agent="search", run="r", types=("headrace.tool.called.v1", "model.called"))


@pytest.mark.parametrize(
    ("topic", "where"),
    [
        ("rewards", "total>0.5"),
        ("rewards", "total=null"),
        ("rewards", "components.a.tool.of.mine.value<1"),
        ("trajectories", "defects=no_end"),
        ("trajectories", "started.agent=search"),
        ("trajectories", "started.task.any.thing=1"),
        ("events", "arguments.query=x"),
        ("events", "result=x"),
        ("training", "members.advantage>0"),
        ("steps", "metrics.kl_k3>0.1"),
        ("dead-letters", "error=late"),
        ("somebody-elses", "whatever=1"),
    ],
)
def test_a_filter_that_can_match_is_accepted(topic: str, where: str) -> None:
    check(topic, where)


def paths(value: object, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if isinstance(value, dict):
        return {path for name, each in value.items() for path in paths(each, (*at, name))}
    if isinstance(value, list):
        return {path for each in value for path in paths(each, at)}
    return {at}


def test_every_field_of_every_example_can_be_filtered_by() -> None:
    topics = {model.TYPE: topic.name for topic in TOPICS for model in topic.models}
    for name, example in EXAMPLES.items():
        payload = decode_record(stored(example)).payload
        assert payload is not None
        for path in paths(json.loads(payload.model_dump_json())):
            check(topics[name], f"{'.'.join(path)}!=null")
