"""Filters keep matching records, and events of a run are recognised by their trajectory's start."""

from dataclasses import replace

import pytest

from headrace.deploy.tail.filters import Condition, Filters
from headrace.deploy.tail.record import decode_record
from headrace.deploy.tail.shortened_ids import shortened
from headrace.deploy.tail.start import StartPosition, parse_start
from headrace.schemas.events import Sampling
from headrace.schemas.examples import EXAMPLES, HELPER, OTHER, TRAJECTORY
from tests.deploy.tail.test_line import stored

SEEN = {name: decode_record(stored(example)) for name, example in EXAMPLES.items()}
BROKEN = decode_record(replace(stored(EXAMPLES["headrace.tool.called.v1"]), value=b"{"))


def kept(filters: Filters) -> set[str]:
    return {name.split(".", 1)[1].removesuffix(".v1") for name, seen in SEEN.items() if filters.keep(seen)}


def test_without_a_filter_everything_is_kept_unreadable_records_too() -> None:
    assert not Filters().are_set
    assert len(kept(Filters())) == len(EXAMPLES)
    assert Filters().keep(BROKEN)


def test_types_may_be_full_or_short_names() -> None:
    assert kept(Filters(types=("tool.called", "headrace.alert.raised.v1"))) == {"tool.called", "alert.raised"}


def test_a_trajectory_is_found_wherever_a_record_names_it() -> None:
    assert kept(Filters(trajectory=OTHER)) == {
        "trajectory.rejected",
        "group.formed",
        "step.trained",
        "record.dead",
        "record.redriven",
    }
    assert kept(Filters(trajectory=HELPER)) == {"subagent.started", "subagent.finished"}
    assert kept(Filters(trajectory=shortened(OTHER))) == kept(Filters(trajectory=OTHER))
    assert Filters(trajectory=TRAJECTORY).keep(BROKEN)


def test_events_of_an_agent_are_recognised_by_their_trajectorys_start() -> None:
    call, start = SEEN["headrace.tool.called.v1"], SEEN["headrace.trajectory.started.v1"]
    filters = Filters(agent="search", run="search-7")
    assert not filters.keep(call)
    assert filters.keep(start)
    assert filters.keep(call)
    other = Filters(agent="somebody else")
    assert not other.keep(start)
    assert not other.keep(call)


def test_derived_records_contain_run_and_agent() -> None:
    assert {"trajectory.assembled", "trajectory.scored"} <= kept(Filters(agent="search"))
    assert {"trajectory.rejected", "step.trained", "weights.applied"} <= kept(Filters(run="search-7"))
    assert kept(Filters(run="another")) == set()


@pytest.mark.parametrize(
    ("text", "type_name", "holds"),
    [
        ("total>1.8", "trajectory.scored", True),
        ("total>1.9", "trajectory.scored", False),
        ("total>=1.83", "trajectory.scored", True),
        ("components.f_beta.value<1", "trajectory.scored", True),
        ("started.agent=search", "trajectory.assembled", True),
        ("started.consent=true", "trajectory.assembled", True),
        ("turns.tools.tool=search_corpus", "trajectory.assembled", True),
        ("defects=no_end", "trajectory.assembled", False),
        ("defects!=no_end", "trajectory.assembled", True),
        ("members.advantage<0", "group.formed", True),
        ("reason!=stale", "trajectory.rejected", True),
        ("reason=stale", "trajectory.rejected", False),
        ("cohort_key=null", "trajectory.scored", True),
        ("nothing.there=1", "trajectory.scored", False),
    ],
)
def test_a_condition_compares_fields_of_the_payload(text: str, type_name: str, holds: bool) -> None:
    filters = Filters(conditions=(Condition.parse(text),))
    assert filters.keep(SEEN[f"headrace.{type_name}.v1"]) is holds
    assert not filters.keep(BROKEN)


def test_an_invalid_condition_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"as in total>0\.5"):
        Condition.parse("total")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", StartPosition()),
        ("now", StartPosition(last=0)),
        ("-20", StartPosition(last=20)),
        ("15m", StartPosition(time_ms=10_000_000 - 900_000)),
        ("2h", StartPosition(time_ms=10_000_000 - 7_200_000)),
        ("1d", StartPosition(time_ms=0)),
        ("1970-01-01T00:00:02Z", StartPosition(time_ms=2000)),
        ("1970-01-01 00:00:02.500", StartPosition(time_ms=2500)),
        ("1970-01-01T01:00:02+01:00", StartPosition(time_ms=2000)),
    ],
)
def test_start_positions_are_parsed(text: str, start: StartPosition) -> None:
    assert parse_start(text, now_ms=10_000_000) == start


@pytest.mark.parametrize("text", ["yesterday", "-", "-200000", "15", "15x", ""])
def test_an_invalid_start_position_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="neither beginning, now, -N"):
        parse_start(text, now_ms=0)


def test_whole_numbers_are_compared_exactly() -> None:
    record = SEEN["headrace.model.called.v1"]
    assert record.payload is not None
    seed = 2**53 + 1
    sampled = replace(record, payload=record.payload.model_copy(update={"sampling": Sampling(seed=seed)}))
    assert Filters(conditions=(Condition.parse(f"sampling.seed={seed}"),)).keep(sampled)
    assert not Filters(conditions=(Condition.parse(f"sampling.seed={seed - 1}"),)).keep(sampled)
    assert Filters(conditions=(Condition.parse(f"sampling.seed>{seed - 1}"),)).keep(sampled)
