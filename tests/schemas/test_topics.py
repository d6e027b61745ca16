"""The registry: every topic once, every type in exactly one topic."""

import pytest

from headrace.schemas.topics import EVENTS, MODELS, TOPICS, TRAJECTORIES, topic_named


def test_names_are_unique_and_each_type_has_one_topic() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    assert len(MODELS) == sum(len(topic.models) for topic in TOPICS)


def test_trajectories_are_partitioned_like_events() -> None:
    assert TRAJECTORIES.partitions == EVENTS.partitions


def test_an_unknown_topic_is_answered_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="dead-letters"):
        topic_named("nope")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_type_names_carry_their_version(name: str) -> None:
    prefix, _, version = name.rpartition(".v")
    assert prefix.startswith("headrace.")
    assert version.isdigit()
