"""The topology matches the code: each function's types are its topics' records, and the drawings follow from it."""

import dataclasses
import types
import typing
from typing import Any

import pytest

from headrace.schemas.model import Record
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.topology import READ_FROM, SENT_BY_COMMANDS, TOPOLOGY, Processor, describe, with_run


def records_in(annotation: Any) -> set[type[Record]]:
    """Every payload type that an annotation mentions at any depth."""
    annotation = READ_FROM.get(annotation, annotation) if isinstance(annotation, type) else annotation
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return {annotation}
    composed = dataclasses.is_dataclass(annotation) or any(
        hasattr(annotation, name) for name in ("_fields", "__struct_fields__")
    )
    if composed and isinstance(annotation, type):
        return set().union(*(records_in(hint) for hint in typing.get_type_hints(annotation).values()))
    found: set[type[Record]] = set()
    for argument in typing.get_args(annotation):
        found |= records_in(argument)
    return found


@pytest.mark.parametrize("processor", TOPOLOGY, ids=lambda processor: processor.name)
def test_function_types_match_the_records_of_their_topics(processor: Processor) -> None:
    hints = typing.get_type_hints(processor.run)
    returned = records_in(hints.pop("return"))
    taken = set().union(*map(records_in, hints.values())) - returned  # a fold also takes what it returned last
    assert taken == {m for topic in processor.reads for m in topic.models}
    assert returned == {model for topic in processor.writes for model in topic.models} - SENT_BY_COMMANDS


def test_the_type_check_unwraps_unions_containers_and_dataclasses() -> None:
    @dataclasses.dataclass
    class Wrapped:
        inside: list[Trajectory | None]

    assert records_in(dict[str, Wrapped] | Reward) == {Trajectory, Reward}
    assert records_in(types.NoneType) == set()


def test_the_description_names_topics_and_functions() -> None:
    assert (
        describe(tuple(processor for processor in TOPOLOGY if processor.name in ("assemble", "score", "group")))
        == """\
assemble
  events → trajectories
  headrace.streams.assembly.assemble.assemble
  The events of a trajectory become one record: tokens, turns, tools, and labels for defects.

score
  trajectories, feedback → rewards
  headrace.streams.scoring.score.score
  Every trajectory gets a reward by the spec of its agent, with its feedback, or the reason for none.

group
  rewards → training, rejected
  headrace.streams.grouping.group.group
  Rewards of one prompt become a training group; groups without a gradient are rejected with a reason.

Unreadable records go to dead-letters; faults of processors are reported in alerts.
"""
    )


def test_a_function_can_be_replaced_by_name() -> None:
    def mine(trajectory: Trajectory) -> Reward:
        pytest.fail("only its name is used")

    assert [processor.name for processor in with_run(TOPOLOGY, "score", mine) if processor.run is mine] == ["score"]
    with pytest.raises(KeyError, match="assemble, score, "):
        with_run(TOPOLOGY, "grade", mine)
