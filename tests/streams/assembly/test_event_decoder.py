"""Reading an event takes time proportional to its bytes, and gives their nesting depth."""

import contextlib
import json
from collections.abc import Callable
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import ModelCalled, ToolReturned, TrajectoryEnded
from headrace.schemas.model import Record
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.event_decoder import read_event
from tests.streams.builders import called, event, facts

SIZE = 64 * 1024
ALLOWED = 200
"""How many times as long as ordinary bytes of the same length an odd payload may take. A quadratic reader takes tens of
thousands of times as long at this size."""

RETURNED, ENDED = facts("tool")[2], facts("ask")[-1]


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    return head + unit * ((SIZE - len(head) - len(tail)) // len(unit)) + tail


ODD: dict[str, tuple[Record, bytes]] = {
    "escaped quotes that no quote ends": (ENDED, filled(b"[" * 200 + b'"', b'\\"', b"")),
    "quotes": (ENDED, filled(b"[" * 200, b'"', b"")),
    "an escape at the end": (ENDED, filled(b"{" * 200 + b'"', b'\\"', b"\\")),
    "backslashes": (ENDED, filled(b"[" * 200 + b'"', b"\\", b"")),
    "brackets": (ENDED, filled(b'{"answer":', b"[", b"")),
    "brackets in pairs": (ENDED, filled(b'{"answer":[', b"[],", b"1]}")),
    "brackets in texts": (ENDED, filled(b'{"answer":[', b'"[{",', b"1]}")),
    "a number without end": (ENDED, filled(b'{"answer":', b"9", b"}")),
    "a fraction without end": (ENDED, filled(b'{"outcome":0.', b"9", b"}")),
    "spaces": (ENDED, filled(b"", b" ", b"")),
    "one key again and again": (ENDED, filled(b'{"answer":{"a":1', b',"a":1', b"}}")),
    "one field again and again": (ENDED, filled(b'{"answer":1', b',"answer":1', b"}")),
    "a list of what it must not hold": (called([1], [2]), filled(b'{"model":"m","messages":[', b"1,", b"1]}")),
    "parts without fields": (called([1], [2]), filled(b'{"model":"m","version_spans":[', b"{},", b"{}]}")),
    "half characters": (RETURNED, filled(b'{"call_id":"c","tool":"t","result":"', b"\\ud800", b'"}')),
    "no UTF-8": (RETURNED, filled(b'{"call_id":"c","tool":"t","result":"', b"\xff", b'"}')),
}


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the least of three."""
    found = []
    for _ in range(3):
        begin = thread_time()
        work()
        found.append(thread_time() - begin)
    return min(found)


def read(fact: Record, value: bytes) -> None:
    with contextlib.suppress(UnreadableRecord):
        read_event(arrival_of(event("s1", 0, fact, value=value)))


@pytest.mark.parametrize("name", ODD)
def test_decoding_time_is_linear_in_the_payload(name: str) -> None:
    assert {ModelCalled, ToolReturned, TrajectoryEnded} >= {type(fact) for fact, _ in ODD.values()}
    honest = filled(b'{"answer":[', b'"word",', b'"word"]}')
    assert seconds(lambda: read(*ODD[name])) < ALLOWED * seconds(lambda: read(ENDED, honest))


@given(
    st.recursive(st.none() | st.text('[]{}"\\a\n'), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_depth_is_exact_with_many_brackets_and_otherwise_an_upper_bound(value: object) -> None:
    def depth(value: object) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    many = [[] for _ in range(MAX_NESTING)]
    assert nesting(json.dumps([value, many]).encode()) == max(1 + depth(value), 3)
    assert nesting(json.dumps(value).encode()) >= depth(value)


def test_a_list_reports_only_its_first_error() -> None:
    with pytest.raises(UnreadableRecord) as caught:
        read_event(arrival_of(event("s1", 0, called([1], [2]), value=b'{"model":"m","messages":[{},1,2,3]}')))
    assert str(caught.value).count("messages.") == 1
