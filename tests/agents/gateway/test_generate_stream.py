"""The stream of generate: what it becomes, and that no wrong stream becomes anything."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.engine_errors import (
    EngineAnswerInvalid,
    EngineBroke,
    EngineError,
    EngineFailed,
    EngineRefused,
)
from headrace.agents.gateway.generate_stream import Chunk, EngineUsage, GenerateStream
from headrace.schemas.events import VersionSpan
from tests.agents.gateway.native.both_ways import read_both_ways
from tests.agents.gateway.scripted_engine import Fault, Reply, ToyCodec, events

PROMPT = [3, 1, 4, 1, 5]
TEXT = "Let me look at the file — naïve 漢字 \u2028 done."


def stream_of(reply: Reply, **params: Any) -> bytes:
    return b"".join(events({"token_ids": PROMPT, "sampling_params": params}, reply, ToyCodec()))


def read(data: Sequence[bytes], **options: Any) -> tuple[list[Chunk], EngineUsage]:
    """What Python alone and Python with the extension module read, which is the same."""
    return read_both_ways(data, **options)


def test_a_stream_becomes_chunks() -> None:
    reply = Reply("a b c", stamps=(("run/3", 0.5), ("run/4", 1.0)), chunk_tokens=2, stop_reason="###")
    (first, last), usage = read(stream_of(reply).splitlines(keepends=True))
    assert (first.choice, first.token_ids, first.text) == (0, array("i", [0, 1]), "a b")
    assert first.logprobs == array("f", [-0.5, -0.5])
    assert first.prompt_ids == array("i", PROMPT)
    assert (first.finish_reason, first.spans, last.prompt_ids) == (None, (), None)
    assert (last.token_ids, last.text, last.finish_reason, last.stop_reason) == (array("i", [2]), " c", "stop", "###")
    assert last.spans == (
        VersionSpan(version=3, start=0, end=2, run="run"),
        VersionSpan(version=4, start=2, end=3, run="run"),
    )
    assert usage == EngineUsage(prompt=5, completion=3)


def test_choices_are_kept_apart() -> None:
    chunks, usage = read([stream_of(Reply("a b c", chunk_tokens=2), n=2)], choices=2)
    assert [(chunk.choice, chunk.text, chunk.finish_reason) for chunk in chunks] == [
        (0, "a b", None),
        (1, "a b", None),
        (0, " c", "stop"),
        (1, " c", "stop"),
    ]
    assert [chunk.prompt_ids is not None for chunk in chunks] == [True, False, False, False]
    assert usage.completion == 6


@pytest.mark.parametrize("with_echo", [True, False])
def test_an_engine_that_counts_another_prompt_is_refused(with_echo: bool) -> None:
    data = stream_of(Reply("a b c")).replace(b'"prompt_tokens":5', b'"prompt_tokens":6')
    if not with_echo:
        data = data.replace(b'"prompt_token_ids":[3,1,4,1,5]', b'"prompt_token_ids":null')
    with pytest.raises(EngineAnswerInvalid, match="it counts 6 tokens of the prompt, which has 5"):
        read([data], prompt=(array("i", PROMPT), b"[3,1,4,1,5]"))


def test_versions_that_are_not_reported_are_unknown() -> None:
    chunks, _ = read([stream_of(Reply("a b c", stamps=()))])
    assert chunks[-1].spans == (VersionSpan(version=None, start=0, end=3),)


def test_an_answer_without_tokens_is_an_answer() -> None:
    chunks, usage = read([stream_of(Reply("", finish_reason="abort", stamps=()))])
    assert [(len(chunk.token_ids), chunk.finish_reason, chunk.spans) for chunk in chunks] == [(0, "abort", ())]
    assert usage.completion == 0


def test_alternatives_are_kept_only_if_asked_for() -> None:
    data = stream_of(Reply("a b"))
    assert read([data])[0][0].entries == ()
    (entry, other) = read([data], with_entries=True)[0][0].entries
    assert (entry.token, entry.logprob, entry.top_logprobs[0].token, other.token) == ("a", -0.5, "a", " b")


def test_the_number_of_cached_tokens_passes() -> None:
    data = stream_of(Reply("a")).replace(
        b'"total_tokens"', b'"prompt_tokens_details":{"cached_tokens":4},"total_tokens"'
    )
    assert read([data])[1].cached == 4


def test_without_a_report_the_usage_is_counted() -> None:
    data = stream_of(Reply("a b c"))
    lines = [line for line in data.split(b"\n\n") if b'"choices":[]' not in line]
    assert read([b"\n\n".join(lines)])[1] == EngineUsage(prompt=5, completion=3)


def test_comments_other_fields_and_windows_lines_are_skipped() -> None:
    data = b": ping\r\n\r\nevent: message\r\n" + stream_of(Reply("a b c")).replace(b"\n\n", b"\r\n\r\n")
    assert read([data]) == read([stream_of(Reply("a b c"))])


def test_what_arrives_together_is_one_chunk_of_its_choice() -> None:
    reply = Reply("a b c d e", chunk_tokens=1, stop_reason="###")
    (whole,), usage = read([stream_of(reply)])
    assert whole == joined(read(stream_of(reply).splitlines(keepends=True))[0])[0]
    assert (whole.token_ids, whole.text, usage.completion) == (array("i", [0, 1, 2, 3, 4]), "a b c d e", 5)


def test_a_choice_that_continues_after_its_end_is_refused_also_if_both_arrive_together() -> None:
    first, last, *_ = stream_of(Reply("a b", chunk_tokens=1)).splitlines(keepends=True)[::2]
    with pytest.raises(EngineAnswerInvalid, match="continues after its end"):
        read([first + last + last])


def joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """One chunk for each choice."""
    found: dict[int, Chunk] = {}
    for chunk in chunks:
        before = found.get(chunk.choice)
        found[chunk.choice] = (
            chunk
            if before is None
            else Chunk(
                chunk.choice,
                before.token_ids + chunk.token_ids,
                before.logprobs + chunk.logprobs,
                before.text + chunk.text,
                chunk.finish_reason,
                chunk.stop_reason,
                chunk.spans,
                before.prompt_ids,
                before.entries + chunk.entries,
            )
        )
    return list(found.values())


@given(
    st.text(max_size=40), st.integers(1, 9), st.lists(st.integers(1, 60), max_size=80), st.booleans(), st.integers(1, 2)
)
def test_the_network_may_cut_anywhere(
    text: str, chunk_tokens: int, cuts: list[int], names_ids: bool, choices: int
) -> None:
    data = stream_of(Reply(text, chunk_tokens=chunk_tokens, names_ids=names_ids), n=choices)
    parts, at = [], 0
    for cut in cuts:
        parts.append(data[at : at + cut])
        at += cut
    parts.append(data[at:])
    found, usage = read(parts, choices=choices, with_entries=True)
    expected, counted = read([data], choices=choices, with_entries=True)
    assert (joined(found), usage) == (joined(expected), counted)


FLIPPED = stream_of(Reply(TEXT, names_ids=True, stamps=(("run/3", 0.5), ("run/4", 1.0))))


@given(st.integers(0, len(FLIPPED) - 1), st.integers(0, 7))
def test_a_flipped_bit_changes_no_token(byte: int, bit: int) -> None:
    damaged = bytearray(FLIPPED)
    damaged[byte] ^= 1 << bit
    try:
        chunks, _ = read([bytes(damaged)])
    except EngineError:
        return
    sound, _ = read([FLIPPED])
    assert [chunk.token_ids for chunk in chunks] == [chunk.token_ids for chunk in sound]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_stream_are_an_error(data: bytes) -> None:
    stream = GenerateStream("http://engine")
    with pytest.raises(EngineError, match="http://engine"):
        _ = stream.feed(b"data: " + data + b"\n"), stream.end()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_field_is_read_or_refused(data: st.DataObject) -> None:
    lines = stream_of(Reply("a b")).split(b"\n\n")
    event = json.loads(lines[0].removeprefix(b"data: "))
    choice = event["choices"][0]
    entry = choice["logprobs"]["content"][0]
    span = choice["weight_versions"][0]
    place = data.draw(st.sampled_from([event, choice, entry, span]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(json_values)
    changed = b"data: " + msgspec.json.encode(event)
    try:
        chunks, usage = read([b"\n\n".join([changed, *lines[1:]])])
    except EngineError:
        return
    assert usage.completion == sum(len(chunk.token_ids) for chunk in chunks) == sum(len(c.logprobs) for c in chunks)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.MISSING_LOGPROB, EngineAnswerInvalid),
        (Fault.WRONG_USAGE, EngineAnswerInvalid),
        (Fault.LOST_CHUNK, EngineAnswerInvalid),
        (Fault.NO_FINISH, EngineBroke),
        (Fault.ERROR_IN_STREAM, EngineFailed),
    ],
)
def test_a_stream_with_a_fault_is_an_error_of_its_kind(fault: Fault, error: type[EngineError]) -> None:
    with pytest.raises(error, match="http://engine"):
        read([stream_of(Reply(TEXT, fault=fault))])


def changed(**changes: Any) -> bytes:
    """The stream of "a b c" in one chunk, with other values in its choice."""
    event = json.loads(stream_of(Reply("a b c")).split(b"\n\n")[0].removeprefix(b"data: "))
    event["choices"][0] |= changes
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def content(*logprobs: float, names: Sequence[str] = ("a", " b", " c")) -> dict[str, Any]:
    return {"content": [{"token": name, "logprob": each} for name, each in zip(names, logprobs, strict=False)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": None}, "0 log-probabilities do not match the 3 sampled tokens"),
        ({"token_ids": None}, "3 log-probabilities do not match the 0 sampled tokens"),
        ({"token_ids": [0, 1, -2]}, "`int` >= 0 - at"),
        ({"token_ids": [0, 1, 2**31]}, "`int` <= 2147483647 - at"),
        ({"token_ids": "abc"}, "Expected `array"),
        ({"logprobs": content(-1, 0.5, -1)}, "0.5 is reported as the log-probability"),
        ({"logprobs": content(-1, -1e300, -1)}, "-inf is reported"),
        ({"logprobs": content(-1, -1, -1, names=("token_id:0", "token_id:2", "token_id:1"))}, "given for token_id:1"),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 2}]}, "do not cover the 3 sampled tokens"),
        ({"weight_versions": [{"version": "1", "start": -1, "end": 3}]}, "greater than or equal to 0"),
        ({"index": 1}, "a choice 1, and 1 were asked for"),
        ({"index": -1}, "a choice -1"),
    ],
)
def test_an_answer_that_could_not_be_trained_on_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineAnswerInvalid, match=message):
        read([changed(**changes)])


def test_more_tokens_than_were_asked_for_are_refused() -> None:
    assert read([changed()], max_tokens=3)
    with pytest.raises(EngineAnswerInvalid, match="more than 2 tokens"):
        read([changed()], max_tokens=2)


def test_nothing_may_follow_an_end() -> None:
    with pytest.raises(EngineAnswerInvalid, match="choice 0 continues after its end"):
        read([changed(), changed().replace(b"prompt_token_ids", b"other")])
    with pytest.raises(EngineAnswerInvalid, match="it continues after its end"):
        read([stream_of(Reply("a")), changed()])


def test_a_prompt_comes_once() -> None:
    with pytest.raises(EngineAnswerInvalid, match="repeats the prompt"):
        read([changed(finish_reason=None, weight_versions=None), changed()])


def test_a_refusal_in_the_stream_keeps_its_status_and_words() -> None:
    error = {"message": "at most 1024 tokens, see http://user:secret@host", "type": "BadRequestError", "code": 400}
    with pytest.raises(EngineRefused) as caught:
        read([b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"])
    assert (caught.value.status, caught.value.kind) == (400, "BadRequestError")
    assert "at most 1024" in caught.value.message
    assert "secret" not in str(caught.value)


def test_lines_and_streams_are_bounded() -> None:
    line = b"data: " + b" " * 100
    for parts in ([line], [line + b"\n"], [line[:50], line[50:]], [line[:50], line[50:] + b"\n"]):
        with pytest.raises(EngineAnswerInvalid, match="more than 64 bytes"):
            read(parts, max_line_bytes=64)
    with pytest.raises(EngineAnswerInvalid, match="larger than a stream may be"):
        read([b": ping\n"] * 20, max_bytes=100)
