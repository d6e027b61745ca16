"""Input of the fuzz test: ordinary, odd and malformed trajectories and feedback. Deterministic.

    cases(7)  →  Case("plain", [9 records]), Case("huge numbers", [6 records]), Case("headers twice", [11 records]) …

A case is one trajectory, or one record about none, with its faults. A case may have several.
"""

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard

from headrace.schemas.bounds import is_time
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.schemas.wire import encode
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, session

PLAIN = "plain"
NUMBERS = [
    "0", "-0", "1", "-1", "1.5", "1e308", "-1e308", "1e-400", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e12",
    "1000000000001", "1e6", str(2**31), str(2**53 + 1), str(2**63), str(2**64), "9" * 30, "9" * 308, "9" * 400,
    "9" * 5000, "1." + "3" * 400, "1e99999999999", "true", '"1"', "null", "[]", "{}", "-", "01", "1_0", "0x10", "+1",
]  # fmt: skip
TEXTS = [
    "", " ", "a" * 513, "é" * 300, "\x00", "\x1b[2J", "\u2028", "😀" * 200, "\ud800", "$\\frac{$", "../../x", "NaN",
    "'; DROP TABLE events", "a" * 70_000, "\\", '"', "\x7f\x01" * 250,
]  # fmt: skip
TIMES = [
    b"9999-12-31T23:59:59.000-23:59", b"0001-01-01T00:00:00.000+23:59", b"1969-12-31T23:59:59.999Z", b"now", b"",
    b"2200-01-01T00:00:00.000Z", b"2026-11-22", b"2026-02-30T00:00:00.000Z", b"2026-11-22T00:00:00", b"\xff",
    b"20261122T000000Z", b"2026-11-22T24:00:00.000Z", b"2026-11-22T00:00:60.000Z", b"2026-W47-7T00:00:00+00:00",
]  # fmt: skip
TIMESTAMPS = [-1, 0, 1, T0 - 10**9, T0 + 11 * 60_000, T0 + 10**11, 2**53, 2**62, 2**63 - 1, -(2**63)]
SEQUENCES = [b"0", b"1", b"65535", b"65536", b"-1", b"1e3", b" 1", b"9" * 18, b"9" * 19, b"", b"\xff", b"7.0"]
HEADERS = ["ce_id", "ce_type", "ce_source", "ce_time", "ce_subject", "ce_sequence", "traceparent", "content-type"]
TYPES = [
    b"headrace.tool.called.v2", b"headrace.tool.called.v99", b"headrace.unknown.v1", b"", b"\xff", b"a" * 3000,
    b"headrace.trajectory.assembled.v1", b"headrace.clock.ticked.v1", b"headrace.trajectory.ended.v1",
]  # fmt: skip
SCARS = [b"\xff", b"\x00", b"\\ud800", b"}", b"{", b'"', b",", b"[" * 300, b"]", b"\\", b"\xed\xa0\x80", b'"a":1,']
FIELDS = ["result", "answer", "arguments", "messages", "task", "outcome", "latency_s", "steps", "stage", "group_size",
          "sampling", "version_spans", "context_ids", "sampled_ids", "logprobs", "prefix_length", "prefix_sha256",
          "usage", "consent", "tokens_before", "pruned_ids", "call_id", "choice", "delivered", "tool", "agent", "run",
          "tenant", "group_id", "cohort_key", "status", "role", "purpose", "sample_rate", "value", "signal", "comment",
          "delay_s", "colour"]  # fmt: skip


@dataclass
class Case:
    """Records in the order in which they are sent."""

    kind: str
    """Description of its faults; ``plain``: none."""
    records: list[StoredRecord] = field(default_factory=list)
    """Records of ``events`` and ``feedback``; offsets are assigned when they are sent."""


def cases(seed: int) -> Iterator[Case]:
    """An endless sequence of cases, deterministic by ``seed``."""
    chance = random.Random(seed)
    number = 0
    while True:
        yield _case(chance, number, f"s{seed}-{number}")
        number += 1


def plain(seed: int, count: int) -> list[Case]:
    """``count`` cases without faults, of several sizes: the reference for the time of other cases."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        case = _ordinary(chance, number, f"p{seed}-{number}")
        for _ in range(chance.choice([0, 0, 1, 3])):
            index = chance.randrange(len(case.records))
            case.records[index] = _with_field(case.records[index], "colour", json.dumps("x" * chance.randrange(20_000)))
        made.append(case)
    return made


def _case(chance: random.Random, number: int, name: str) -> Case:
    case = _ordinary(chance, number, name)
    if chance.random() < 0.3:
        return case
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        wrong = chance.choice(_FAULTS)
        if case.records:
            wrong(case, chance)
            label = wrong.__name__.strip("_").replace("_", " ")
            case.kind = label if case.kind == PLAIN else f"{case.kind}, {label}"
    return case


def _ordinary(chance: random.Random, number: int, name: str) -> Case:
    steps = ["ask", *chance.choices(["ask", "tool", "prune", "summarize", "back"], k=chance.randrange(5)), "answer"]
    group = random.Random(number // 3)  # members of a group agree, as a rule
    start: dict[str, Any] = {
        "agent": group.choice(["test", "test", "voted", "search", "shop", "free"]),
        "group_id": f"g{number // 3}" if chance.random() < 0.8 else None,
        "group_size": chance.choice([3, 3, 3, 4, None]),
        "run": "other" if chance.random() < 0.02 else "r",
        "tenant": "x" if chance.random() < 0.02 else group.choice([None, "y"]),
        "cohort_key": chance.choice([None, "eu"]),
        "task": chance.choice([{}, {"targets": ["c1"], "answer_chunks": ["c1"]}]),
    }
    time_ms = T0 + 500 * number
    case = Case(
        PLAIN, session(name, *steps, outcome=chance.choice([0.0, 1.0, 0.5, None]), start=start, time_ms=time_ms)
    )
    if chance.random() < 0.2:
        case.records.append(_feedback(name, time_ms + chance.randrange(5_000), "accepted", 1.0))
    return case


def _feedback(name: str, time_ms: int, signal: str, value: float, id: str | None = None) -> StoredRecord:
    given = FeedbackGiven(signal=signal, value=value)
    agent_ms = time_ms if is_time(time_ms) else T0
    envelope = Envelope(id or derived_id("said", name, time_ms), given.TYPE, "/test", agent_ms, name)
    message = encode(given, key=name, envelope=envelope)
    return StoredRecord(FEEDBACK.name, 0, 0, time_ms, message.key, message.value, message.headers)


def _pick(case: Case, chance: random.Random) -> int:
    return chance.randrange(len(case.records))


def _with_field(record: StoredRecord, name: str, json_text: str) -> StoredRecord:
    """``record`` with a field of its payload set to an arbitrary JSON text."""
    try:
        fields = json.loads(record.value or b"null")
    except (ValueError, RecursionError):
        return record
    if not isinstance(fields, dict):
        return record
    fields.pop(name, None)
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    value = f"{body}{',' if fields else ''}{json.dumps(name)}:{json_text}}}"
    return replace(record, value=value.encode("utf-8", "surrogatepass"))


def _odd_number(case: Case, chance: random.Random) -> None:
    index, number = _pick(case, chance), chance.choice(NUMBERS)
    wrapped = chance.choice(["@", "[@]", '{"a":@}', '{"a":[1,{"b":@}]}']).replace("@", number)
    case.records[index] = _with_field(case.records[index], chance.choice(FIELDS), wrapped)


def _odd_text(case: Case, chance: random.Random) -> None:
    index, text = _pick(case, chance), json.dumps(chance.choice(TEXTS), ensure_ascii=chance.random() < 0.5)
    case.records[index] = _with_field(case.records[index], chance.choice(FIELDS), text)


def _nesting(case: Case, chance: random.Random) -> None:
    index, depth = _pick(case, chance), chance.choice([10, 149, 150, 151, 199, 201, 5_000, 100_000])
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    text = opening * depth + "1" + closing * depth
    case.records[index] = _with_field(case.records[index], chance.choice(["result", "answer", "task", "colour"]), text)


def _damage(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    value = case.records[index].value or b""
    at = chance.randrange(len(value) + 1)
    value = value[:at] + chance.choice(SCARS) + value[at + chance.randrange(4) :]
    case.records[index] = replace(case.records[index], value=chance.choice([value, value, value[:at], b"", None]))


def _large(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    size = chance.choice([10_000, 100_000, 400_000])
    text = chance.choice([
        json.dumps("x" * size), "[" + "0," * (size // 2) + "0]", json.dumps('"' * (size // 2)), " " * size + "1",
        "[" + "{}," * (size // 3) + "{}]", '"' + "\\" * (size // 2 * 2) + '"', "[" + '"",' * (size // 3) + '""]',
    ])  # fmt: skip
    case.records[index] = _with_field(case.records[index], chance.choice(FIELDS), text)


def _inflating(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    size = chance.choice([1_000, 65_536, 65_540, 1_000_000, 16_777_216])
    packed = base64.b64encode(zstandard.ZstdCompressor(level=1).compress(bytes(size))).decode()
    name = chance.choice(["context_ids", "sampled_ids", "logprobs"])
    case.records[index] = _with_field(case.records[index], name, json.dumps(f"zstd:{packed}"))


def _header(case: Case, chance: random.Random) -> None:
    index, name = _pick(case, chance), chance.choice(HEADERS)
    others = [b"", b"\xff", None, b"a" * 513, b"a" * 5000, "\u2028".encode(), b"00-xyz", b"\x1b[2J", b"s"]
    content = {"ce_time": TIMES, "ce_sequence": SEQUENCES, "ce_type": TYPES}.get(name, others)
    headers = [each for each in case.records[index].headers if each[0] != name]
    if chance.random() < 0.8:
        headers.append((name, chance.choice(content)))
    case.records[index] = replace(case.records[index], headers=headers)


def _headers_twice(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    headers = [*case.records[index].headers]
    for _ in range(chance.choice([1, 3, 200, 2_000])):
        headers.append(chance.choice([*headers[:9], ("x" * chance.choice([1, 300]), b"y" * 10)]))
    case.records[index] = replace(case.records[index], headers=headers)


def _timestamps(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    case.records[index] = replace(case.records[index], timestamp=chance.choice(TIMESTAMPS))


def _repeated(case: Case, chance: random.Random) -> None:
    index = _pick(case, chance)
    case.records += [case.records[index]] * chance.choice([1, 1, 5, 40])


def _conflict(case: Case, chance: random.Random) -> None:
    """A second event under one sequence number, with another payload and id."""
    index = _pick(case, chance)
    twin = _with_field(case.records[index], "colour", '"other"')
    kept = [each for each in twin.headers if each[0] != "ce_id"]
    case.records.insert(index + 1, replace(twin, headers=[*kept, ("ce_id", b"other")]))


def _shuffled(case: Case, chance: random.Random) -> None:
    chance.shuffle(case.records)


def _lost(case: Case, chance: random.Random) -> None:
    del case.records[_pick(case, chance)]


def _far_ahead(case: Case, chance: random.Random) -> None:
    """One event with the largest possible sequence number: everything before it is a gap."""
    index = _pick(case, chance)
    kept = [each for each in case.records[index].headers if each[0] != "ce_sequence"]
    case.records[index] = replace(case.records[index], headers=[*kept, ("ce_sequence", b"65535")])


def _much_feedback(case: Case, chance: random.Random) -> None:
    first = case.records[0]
    name = (first.key or b"s").decode(errors="replace")
    for number in range(chance.choice([1, 70, 200])):
        value = chance.choice([0.0, 1.0, -1e12, 1e12, 1e6])
        signal = chance.choice(["accepted", "rejected", "shown", "s" * 512])
        case.records.append(_feedback(name, first.timestamp + number, signal, value, f"f{name}{number}" + "i" * 400))


_FAULTS: list[Callable[[Case, random.Random], None]] = [
    _odd_number, _odd_number, _odd_number, _odd_text, _odd_text, _nesting, _damage, _damage, _large, _inflating,
    _header, _header, _headers_twice, _timestamps, _repeated, _conflict, _shuffled, _lost, _far_ahead, _much_feedback,
]  # fmt: skip

TOPICS = (EVENTS, FEEDBACK)
"""Topics of the cases' records."""
