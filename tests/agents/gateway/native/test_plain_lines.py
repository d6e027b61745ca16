"""Plain lines of an engine's stream in C++: what Python reads, and nothing else."""

import json
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.agents.gateway.engine_errors import EngineError
from headrace.agents.gateway.generate_stream import MAX_LINE_BYTES, GenerateStream
from headrace.agents.gateway.native.available import read_plain, reads_nothing
from tests.agents.gateway.native.both_ways import compare, needs_speedups, read_one_way

pytestmark = needs_speedups

PROMPT = array("i", [3, 1, 4, 1, 5])
PROMPT_JSON = b"[3,1,4,1,5]"
TEXTS = (" look", "naïve 漢字", '"\\/\n\t\u0000\u2028', "", "😀", "token_id:7")

MARK = "\ufdd0"
"""Stands for an odd value until the event is JSON."""

Place = tuple[str | int, ...]
PLACES: tuple[Place, ...] = (
    (), ("choices",), ("choices", 0), ("choices", 0, "index"), ("choices", 0, "text"), ("choices", 0, "token_ids"),
    ("choices", 0, "token_ids", 0), ("choices", 0, "logprobs"), ("choices", 0, "logprobs", "content"),
    ("choices", 0, "logprobs", "content", 0), ("choices", 0, "logprobs", "content", 0, "token"),
    ("choices", 0, "logprobs", "content", 0, "logprob"), ("choices", 0, "logprobs", "content", 0, "bytes"),
    ("choices", 0, "finish_reason"), ("choices", 0, "stop_reason"), ("choices", 0, "weight_versions"),
    ("choices", 0, "routed_experts"), ("prompt_token_ids",), ("usage",), ("error",), ("request_id",),
)  # fmt: skip
"""Where an event may have another value."""

NUMBERS = (
    "0 -0 -0.0 0.0 1 -1 01 1. .5 -.5 +1 1e3 -1e-3 1E+400 -1e400 -3.4028235e38 -3.4028236e38 0.001 0.0010000001 0.0011 "
    "-0.1234567890123456789012345678901234567890 2147483647 2147483648 9223372036854775808 NaN -Infinity - 1e "
    "-0.30000000000000004 1e-320 -12345678901234567890"
)
OTHERS = (
    r'null|true|[]|{}|[1]|""|"\ud83d\ude00"|"\ud83d"|"\u00e9"|"\u0000"|"\x"|"a|[[[[1]]]]|nul|'
    r' 7 |[1,]|{"a":1,}|{"a":1,"a":2}'
)
ODD = st.sampled_from((*NUMBERS.split(), *OTHERS.split("|"), '"\x01"', "[" * 40 + "]" * 40))


def event(ids: list[int], text: str, *, named: bool = False, **changes: Any) -> dict[str, Any]:
    """An event in the form that vLLM writes."""
    entries = [
        {"token": f"token_id:{each}" if named else text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        for each in ids
    ]
    choice = {"index": 0, "text": text, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": None}
    return {"request_id": "r", "choices": [{**choice, "weight_versions": None, **changes}]}


def line(value: object, ending: str = "\n\n", *, ascii_only: bool = False) -> bytes:
    """An event as a line of the stream."""
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    return f"data: {text}{ending}".encode()


END = line({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"


def same(*parts: bytes, **options: Any) -> None:
    """Read ``parts`` both ways."""
    options = {"prompt": (PROMPT, PROMPT_JSON)} | options
    compare(read_one_way(parts, reads_nothing, **options), read_one_way(parts, read_plain, **options))


events = st.builds(
    lambda ids, text, named: event(ids, text, named=named),
    st.lists(st.integers(0, 2**31 - 1), max_size=4),
    st.sampled_from(TEXTS) | st.text(max_size=6),
    st.booleans(),
)


@given(
    st.lists(events, min_size=1, max_size=5),
    st.sampled_from(["\n\n", "\r\n\r\n", "\n"]),
    st.booleans(),
    st.lists(st.integers(1, 90), max_size=30),
)
def test_a_stream_is_the_same_both_ways_however_the_network_cuts_it(
    values: list[dict[str, Any]], ending: str, ascii_only: bool, cuts: list[int]
) -> None:
    values[0]["prompt_token_ids"] = PROMPT.tolist()
    data = b"".join(line(each, ending, ascii_only=ascii_only) for each in values) + END
    parts, at = [], 0
    for cut in cuts:
        parts.append(data[at : at + cut])
        at += cut
    same(*parts, data[at:])


def test_a_stream_is_the_same_cut_at_each_byte() -> None:
    data = line(event([7, 8], TEXTS[1])) + line(event([9], TEXTS[2]), ascii_only=True) + END
    for at in range(len(data)):
        same(data[:at], data[at:])


def with_value(place: Place, odd: str, *, named: bool) -> bytes:
    """An event in which ``odd``, which need not be JSON, stands at ``place``."""
    whole: Any = event([7, 8], " look", named=named)
    if not place:
        return f"data: {odd}\n\n".encode()
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = MARK
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text.replace(json.dumps(MARK, ensure_ascii=False), odd)}\n\n".encode()


@given(
    st.sampled_from(["finish_reason", "stop_reason", "weight_versions"]),
    ODD | st.just('[{"version":"run/7","start":0,"end":2}]') | st.just('[{"version":"7","start":0,"end":1}]'),
    st.booleans(),
)
def test_an_odd_end_is_read_or_refused_alike(name: str, odd: str, stops: bool) -> None:
    whole = event([7, 8], " look", **{"finish_reason": "stop" if stops else None, "stop_reason": 9, name: MARK})
    text = json.dumps(whole, ensure_ascii=False).replace(json.dumps(MARK, ensure_ascii=False), odd)
    same(f"data: {text}\n\ndata: [DONE]\n\n".encode())
    same(line(event([5], "a")) + f"data: {text}\n\n".encode() + END)


@given(st.sampled_from(PLACES), ODD, st.booleans())
@example(("choices", 0, "token_ids"), "[7,8]", True)
def test_an_odd_value_in_any_place_is_read_or_refused_alike(place: Place, odd: str, named: bool) -> None:
    same(with_value(place, odd, named=named), END)
    same(line(event([5], "a", named=named)), with_value(place, odd, named=named), line(event([6], "b")), END)


SOUND = line(event([7, 8], TEXTS[1], named=True)) + line(event([9], TEXTS[2])) + END


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes_are_read_or_refused_alike(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(SOUND)
    for at, byte in changes:
        damaged[at] = byte
    same(bytes(damaged))


@pytest.mark.parametrize(
    "value",
    [
        {**event([7], "a"), "prompt_token_ids": [3, 1, 4]},
        {**event([7], "a"), "prompt_token_ids": []},
        event([7], "a", token_ids=[8], logprobs={"content": []}),
        event([7, 8], "a", index=1),
        event([7], "a", finish_reason="length"),
        {"choices": [event([7], "a")["choices"][0], event([8], "b", index=1)["choices"][0]]},
        {"error": {"message": "away", "type": "InternalServerError", "code": 500}},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
    ],
)
def test_what_is_not_plain_is_left_to_python(value: dict[str, Any]) -> None:
    same(line(event([5], "x")), line(value), line(event([6], "y")), END, choices=2)
    same(line(value), END)


def test_a_word_with_something_after_it_is_refused_both_ways() -> None:
    echo = line({**event([7], "a"), "prompt_token_ids": None})
    for odd in (b"null[3,1,4]", b"nullx", b"null[]", b'null"', b"nullnull"):
        same(echo.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + odd) + END)
        same(echo.replace(b'"prompt_token_ids":null', b'"usage":' + odd) + END)
    null = event([7], "a") | {"prompt_token_ids": None}
    data = json.dumps(null, separators=(",", ":")).encode().replace(b'ids":null', b'ids":null' + PROMPT_JSON)
    for reader in (reads_nothing, read_plain):
        found = read_one_way([b"data: " + data + b"\n\n" + END], reader, prompt=(PROMPT, PROMPT_JSON))
        assert isinstance(found, EngineError)


def test_an_echo_in_the_middle_of_a_stream_is_refused_both_ways() -> None:
    echo = {**event([7], "a"), "prompt_token_ids": PROMPT.tolist()}
    same(line(event([5], "x")) + line(echo) + END)
    same(line(event([5], "x")), line(echo) + END)


def test_limits_hold_both_ways() -> None:
    long = line(event(list(range(50)), "x" * 50))
    same(long, END, max_line_bytes=len(long) - 3)
    same(long, END, max_line_bytes=len(long) - 2)
    same(long, long, END, max_tokens=60)
    same(long * 3, END, max_bytes=2 * len(long))


def test_the_usual_lines_of_an_answer_are_plain() -> None:
    first = {**event([7], " look"), "prompt_token_ids": PROMPT.tolist()}
    data = line(first) + line(event([8, 9], "naïve \n", named=False)) + line(event([10], "😀"))
    assert read_plain(data, 0, PROMPT_JSON, MAX_LINE_BYTES) == (
        len(data),
        0,
        array("i", [7, 8, 9, 10]).tobytes(),
        array("f", [-0.5] * 4).tobytes(),
        " looknaïve \n😀",
        True,
        None,
    )
    data += line(event([11], "", finish_reason="stop", weight_versions=[{"version": "1", "start": 0, "end": 5}]))
    found = read_plain(data, len(data) - len(data.rpartition(b"data: ")[2]) - 6, None, MAX_LINE_BYTES)
    assert found is not None
    assert found[6] == (
        b'{"index":0,"text":"","finish_reason":"stop","stop_reason":null,'
        b'"weight_versions":[{"version":"1","start":0,"end":5}]}'
    )


@pytest.mark.parametrize(
    "arguments", [(), ("", 0, None, 9), (b"", -1, None, 9), (b"", 0, "x", 9), (b"", 2**80, None, 9)]
)
def test_wrong_arguments_are_errors(arguments: tuple[Any, ...]) -> None:
    reader: Callable[..., object] = read_plain
    with pytest.raises((TypeError, ValueError, OverflowError)):
        reader(*arguments)
    assert read_plain(b"data: {}", 100, None, 9) is None


def test_alternatives_that_were_asked_for_are_read_by_python() -> None:
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    data = line(event([7], "a", logprobs={"content": [entry]})) + END
    found = [GenerateStream("e", with_entries=True, read_plain=each).feed(data) for each in (reads_nothing, read_plain)]
    assert found[0] == found[1]
    assert found[0][0].entries[0].top_logprobs[0].token == "a"
