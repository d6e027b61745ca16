"""Arbitrary logs and limits for property tests."""

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from headrace.schemas.bounds import MAX_TIME_MS
from headrace.schemas.envelope import SEQUENCE, SUBJECT, TYPE
from headrace.schemas.events import ClockTicked
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, log, session, tick, with_header, without

HOUR = 3_600_000

Spoiling = Callable[[StoredRecord, random.Random], StoredRecord]

SPOILINGS: tuple[Spoiling, ...] = (
    lambda record, _: replace(record, value=None),
    lambda record, _: replace(record, value=b"{"),
    lambda record, _: replace(record, value=b'{"call_id": 7}'),
    lambda record, _: replace(record, value=b'{"call_id":"c","tool":"t","result":' + b"[" * 160 + b"]" * 160 + b"}"),
    lambda record, _: replace(record, value=b" " * 2000),
    lambda record, _: replace(record, headers=[]),
    lambda record, _: without(record, SEQUENCE),
    lambda record, _: without(record, SUBJECT),
    lambda record, _: without(record, "ce_time"),
    lambda record, _: with_header(record, "ce_time", b"yesterday"),
    lambda record, _: with_header(record, "ce_time", b"9999-12-31T23:59:59.000-23:59"),
    lambda record, _: with_header(record, "ce_time", b"2200-01-01T00:00:00.000Z"),
    lambda record, _: with_header(record, "ce_time", b"1969-12-31T23:59:59.999Z"),
    lambda record, _: with_header(record, "ce_id", None),
    lambda record, _: with_header(record, "ce_source", b"/" + b"a" * 2048),
    lambda record, _: replace(record, value=b'{"call_id":"c","tool":"' + b"t" * 513 + b'"}'),
    lambda record, chance: with_header(record, "ce_id", b"of run %d" % chance.randrange(2)),
    lambda record, _: with_header(record, "ce_id", b"i" * 600),
    lambda record, _: with_header(record, "ce_id", "é".encode()),
    lambda record, _: with_header(record, "ce_id", b'a "quoted" id'),
    lambda record, _: replace(record, value=b" " + (record.value or b"") + b"\n"),
    lambda record, _: replace(record, value=b"[]"),
    lambda record, _: with_header(record, "ce_time", b"2026-11-22T12:00:00+01:00"),
    lambda record, _: with_header(record, SEQUENCE, b"70000"),
    lambda record, _: with_header(record, SEQUENCE, b"1" * 30),
    lambda record, _: with_header(record, TYPE, b"headrace.tool.called.v2"),
    lambda record, _: with_header(record, TYPE, b"headrace.dream.dreamt.v1"),
    lambda record, _: with_header(record, TYPE, ClockTicked.TYPE.encode()),
    lambda record, chance: with_header(record, SEQUENCE, b"%d" % chance.randrange(12)),
    lambda record, chance: replace(record, timestamp=record.timestamp + chance.randrange(-500, 500)),
)


@st.composite
def messy_log(draw: st.DrawFn) -> list[StoredRecord]:
    """A log with all faults together: interleaved, duplicated, lost, out of order, without an end, re-sent, damaged and
    repaired, with pauses and ticks.
    """
    chance = random.Random(draw(st.integers(0, 2**32)))
    spoilt = draw(st.sampled_from([0.0, 0.05, 0.3]))
    lost = draw(st.sampled_from([0.0, 0.1]))
    far = draw(st.sampled_from([1, 3, 40]))
    records: list[StoredRecord] = []
    for _ in range(draw(st.integers(1, 12))):
        history = session(
            f"s{chance.randrange(8)}", *chance.choices(["ask", "tool", "prune", "back"], k=chance.randrange(4))
        )
        kept = [record for record in history if chance.random() >= lost]
        kept += [record for record in history if chance.random() < 0.1]
        at = chance.randrange(len(records) + 1)
        for record in kept:
            spoiled = chance.choice(SPOILINGS)(record, chance) if chance.random() < spoilt else record
            at = min(len(records), max(0, at + chance.randrange(3) - chance.randrange(far)))
            records.insert(at, spoiled)
    time_ms, timed = T0, []
    for record in records:
        time_ms += chance.choice([0, 1, 1, 5, 40, 120])
        stamped = time_ms - chance.choice([0, 0, 0, 30])
        if chance.random() < spoilt / 5:
            stamped = chance.choice([-1, -(2**63), 2**63 - 1, MAX_TIME_MS])
        timed.append(replace(record, timestamp=stamped))
        if chance.random() < 0.05:
            timed.append(tick(time_ms + chance.choice([0, 60])))
    silence = [tick(time_ms + after) for after in (*range(chance.choice([1000, 2500]), 12_000, 1000), HOUR)]
    return log([*timed, *silence])


LIMITS = st.builds(
    FoldLimits,
    idle_timeout_ms=st.sampled_from([50, 200, 5000]),
    hole_grace_ms=st.sampled_from([1, 20, 300]),
    max_open=st.sampled_from([1, 2, 100]),
    max_open_bytes=st.sampled_from([8_000, 1_000_000]),
    max_trajectory_bytes=st.sampled_from([5_000, 1_000_000]),
    max_gaps=st.sampled_from([1, 256]),
    remember=st.sampled_from([1, 2, 100]),
    remember_bytes=st.sampled_from([900, 1_000_000]),
    max_remembered=st.sampled_from([100, 200]),
) | st.just(FoldLimits(remember=1, max_remembered=2, idle_timeout_ms=5000))
