"""The stored form of state: later releases must read what a release has written with the same meaning."""

import json
from typing import Any

import msgspec
import pytest

from headrace.streams.grouping.baselines import RunningMean
from headrace.streams.grouping.group_state import (
    CLOCK,
    Candidate,
    Entry,
    GroupState,
    Rollouts,
    StoredMember,
    decoded,
    group_key,
    groups_of,
    member_key,
    rollouts_key,
    running_key,
    to_record,
    without_group,
)
from headrace.streams.grouping.watermark import Watermark

OPEN = {
    "kind": "group", "group_id": "g", "run": "r", "task_id": "t", "spec": "s@1", "maximum": 1.0, "size": 2,
    "opened_ms": 100,
}  # fmt: skip
MEMBER = {"trajectory_id": "a", "partition": 3, "offset": 7, "spec": "s@1", "total": None}
"""The minimal form of each entry: fields with default values are not written."""


def read(value: Any) -> Entry:
    return decoded(b"[]", json.dumps(value).encode())


def test_absent_fields_of_a_stored_group_and_member_have_their_defaults() -> None:
    assert read(OPEN) == GroupState(
        group_id="g", run="r", task_id="t", spec="s@1", maximum=1.0, size=2, opened_ms=100, tenant=None,
        cohort_key=None, members={}, closed=None, closed_ms=None, skipped_ms=0,
    )  # fmt: skip
    assert read({"kind": "member", "group_id": "g", "member": MEMBER}) == StoredMember(
        "g",
        Candidate(
            trajectory_id="a", partition=3, offset=7, spec="s@1", total=None, task_id=None, revision=0, defects=(),
            oldest_version=None, sampled_tokens=0, traceparent=None,
        ),
    )  # fmt: skip
    assert read({"kind": "clock", "sources": 4}) == Watermark(4, None, None, 0, {}, 0, 0)


FULL = Candidate("a", 3, 7, "s@1", 0.5, "t", 2, ("no_end",), 9, 12, "trace")
ENTRIES: list[tuple[Any, Entry, dict[str, Any]]] = [
    (
        group_key("g"),
        GroupState(
            group_id="g", run="r", task_id="t", spec="s@1", maximum=None, size=None, opened_ms=100, tenant="x",
            cohort_key="eu", closed=("a", "b"), closed_ms=200, skipped_ms=5,
        ),
        OPEN | {
            "maximum": None, "size": None, "tenant": "x", "cohort_key": "eu", "closed": ["a", "b"], "closed_ms": 200,
            "skipped_ms": 5,
        },
    ),
    (
        member_key("g", "a"),
        StoredMember("g", FULL),
        {
            "kind": "member", "group_id": "g",
            "member": MEMBER | {
                "total": 0.5, "task_id": "t", "revision": 2, "defects": ["no_end"], "oldest_version": 9,
                "sampled_tokens": 12, "traceparent": "trace",
            },
        },
    ),
    (
        rollouts_key("r"),
        Rollouts("r", 8, 3.5, 2, 1, 0, 1),
        {"kind": "rollouts", "run": "r", "scored": 8, "reward_sum": 3.5, "groups": 2, "all_success": 1, "all_fail": 0,
         "all_equal": 1},
    ),
    (
        CLOCK,
        Watermark(2, 300, 200, 5, {0: (300, 5), 1: (200, 4)}, 150, 20),
        {"kind": "clock", "sources": 2, "newest_ms": 300, "passed_ms": 200, "records": 5,
         "newest": {"0": [300, 5], "1": [200, 4]}, "reached_ms": 150, "skipped_ms": 20},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "entry", "written"), ENTRIES, ids=lambda each: type(each).__name__)
def test_an_entry_round_trips_under_stable_field_names(key: Any, entry: Entry, written: dict[str, Any]) -> None:
    name, value = to_record(key, entry)
    assert json.loads(name) == list(key)
    assert value is not None
    assert json.loads(value) == written
    assert decoded(name, value) == read(written) == entry


def test_a_running_mean_round_trips() -> None:
    mean = RunningMean(("r", "s@1", "eu")).after(0.5, None).after(1.0, None)
    name, value = to_record(running_key(mean.cohort), mean)
    assert value is not None
    assert (json.loads(name), decoded(name, value)) == (["running", "r", "s@1", "eu"], mean)


def test_members_are_separate_records_and_rejoin_their_group() -> None:
    state = msgspec.structs.replace(read(OPEN), members={"a": FULL})
    assert isinstance(state, GroupState)
    _, value = to_record(group_key("g"), state)
    assert value is not None
    alone, member = decoded(b"", value), StoredMember("g", FULL)
    assert alone == read(OPEN)
    assert groups_of([member, alone]) == groups_of([alone, member]) == [state]
    assert without_group({b"m": member, b"g": alone}) == set()
    assert without_group({b"m": member}) == {b"m"}


def test_a_tombstone_deletes_its_key() -> None:
    assert to_record(group_key("g"), None) == (b'["group","g"]', None)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"kind":"group"}', b'{"kind":"other"}', b"\xff"])
def test_an_unreadable_entry_is_named_by_its_key(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"group state with the key .*group.* cannot be read"):
        decoded(b'["group","g"]', value)
