"""What must be hidden never leaves the process: not in an event, not on disk, not in a log line."""

import base64
import json
import re
import string
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context

from headrace.agents.encoding import Encoded, InvalidEvent, Note, encode_note
from headrace.agents.masking.linear import PIECE, LinearPattern, linear
from headrace.agents.masking.masker import Masker
from headrace.agents.masking.presets import Preset, is_luhn
from headrace.agents.masking.settings import FAILED_TEXT, Masking
from headrace.agents.masking.timed_calls import MAX_STUCK, CallFailed, TimedCalls
from headrace.agents.sdk import Headrace
from headrace.schemas.events import (
    FeedbackGiven,
    ModelCalled,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from tests.agents.masking_cases import MODELS, planted
from tests.agents.sdk_helpers import NOWHERE, until

CANARIES = {
    Preset.EMAIL: "ada.canary@mill.example",
    Preset.API_KEY: "sk-canary0123456789abcdef",
    Preset.PAYMENT_CARD: "4111 1111 1111 1111",
}


def masked(text: str, masking: Masking | None = None) -> tuple[str, Counter[str]]:
    event = Masker(masking or Masking()).event()
    return event.text(text), event.counts


def encoded(model: type[Record], fields: dict[str, Any], masker: Masker, *, key: str = "t1") -> Encoded:
    return encode_note(Note(EVENTS, key, 0, 1, Context(), model, fields), "shop", 1 << 20, masker)


def content(event: Encoded) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.message.value)
    return found


# What the presets find.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("write to ada.b+x@mill.example.com.", "write to [email]."),
        ("<zoë@münchen.example>", "<[email]>"),
        ("a@b and @home, x@ y", "a@b and @home, x@ y"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: [api_key]"),
        ("then bearer abcdefgh12345678.", "then bearer [api_key]"),
        ('{"api_key": "q", "n": 1}', '{"api_key": [api_key], "n": 1}'),
        ("sk-ant-api03-abcdefghijklmnop and AKIAIOSFODNN7EXAMPLE", "[api_key] and [api_key]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[api_key]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "[api_key]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc+/=\n-----END RSA PRIVATE KEY-----\nend", "[api_key]\nend"),
        ("http://user:pw@host/x", "http://[api_key]@host/x"),
        ("a task-based, risk-averse token: 7 of 9", "a task-based, risk-averse token: 7 of 9"),
        ("card 4111-1111-1111-1111, 123", "card [payment_card], 123"),
        ("4111 1111 1111 1111 123 and 5500000000000004", "[payment_card] 123 and [payment_card]"),
        ("340000000000009 3234 4111111111111111", "[payment_card] 3234 [payment_card]"),
        (
            "4111 1111 1111 1112, 1795260264512, 0.4111111111111111",
            "4111 1111 1111 1112, 1795260264512, 0.4111111111111111",
        ),
        # Lines of CSV and arrays of JSON.
        ("17,4111111111111111,12/27", "17,[payment_card],12/27"),
        ("[5,4111111111111111]", "[5,[payment_card]]"),
        # Encoded for a URL, once and twice, for HTML and for JSON.
        ("https://x/?to=ada%40mill.example&n=1", "https://x/?to=[email]&n=1"),
        ("ada%2540mill.example ada&#64;mill.example", "[email] [email]"),
        (r"ada\u0040mill.example and 40%40 off", "[email] and 40%40 off"),
        # Other scripts, and forms of ASCII.
        ("ａda＠mill。example", "[email]"),
        ("４１１１１１１１１１１１１１１１, ٤١١١ ١١١١ ١١١١ ١١١١", "[payment_card], [payment_card]"),
        ("4111\u202f1111\u20091111\u00a01111 4111–1111‑1111—1111", "[payment_card] [payment_card]"),
        ("password：hunter2", "password：[api_key]"),
        # Invisible characters are left out of a text in which something is hidden, and of no other.
        ("a\u00adda\u200b@mill.\u2060example 👩\u200d🚀", "[email] 👩🚀"),
        ("jose\u0301@mill.example, ada@mu\u0308ll.example, राम@उदाहरण.भारत", "[email], [email], [email]"),
        ("e\u0301Bearer abcdefgh12345678 4111\u0301111111111111", "e\u0301Bearer [api_key] [payment_card]"),
        ("ada\ufe0f@mi\u034fll.example 4111\U000e01001111 1111\u3164 1111", "[email] [payment_card]"),
        ("👩\u200d🚀 ４ — \u00a0", "👩\u200d🚀 ４ — \u00a0"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A\n\nMII=\n"
            "-----END RSA PRIVATE KEY-----\nend",
            "[api_key]\nend",
        ),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQO=\n-----END PGP PRIVATE KEY BLOCK-----", "[api_key]"),
        ("SECRET_KEY=q7 secretKey: q7", "SECRET_KEY=[api_key] secretKey: [api_key]"),
        # Parameters of URLs; of others that only look like them nothing is hidden.
        ("get https://m.example/x?key=q7&n=1.", "get https://m.example/x?key=[api_key]&n=1."),
        ("(https://m.example/x?n=1&sig=q7%2Bq8%3D), then", "(https://m.example/x?n=1&sig=[api_key]), then"),
        ("https://m.example/#token=q7 x", "https://m.example/#token=[api_key] x"),
        ("?X-Amz-Signature=0a1b&auth=q7", "?X-Amz-Signature=[api_key]&auth=[api_key]"),
        ("?a=1&amp;sharedKey=q7&amp;b=2", "?a=1&amp;sharedKey=[api_key]&amp;b=2"),
        (r'{"u": "?a=1\u0026sig=q7\u0026b=2"}', r'{"u": "?a=1\u0026sig=[api_key]\u0026b=2"}'),
        ("?next=https%3A%2F%2Fm.example%3Ftoken%3Dq7&n=1", "?next=https%3A%2F%2Fm.example%3Ftoken%3D[api_key]&n=1"),
        # A value of which one rule hides the beginning, and one whose label another rule would find.
        ("api_key=sk-abcdefghijklmnopqrst.uvw, n", "api_key=[api_key], n"),
        ("?api_key=q7&key=AIzaSyA1234567890abcdefghijklmnopqrstu&n=1", "?api_key=[api_key]&key=[api_key]&n=1"),
        ("x-api-key: q7, secret=4111111111111111-q7", "x-api-key: [api_key], secret=[api_key]"),
        ("?keyword=boots&design=oak&author=ada&sort-key", "?keyword=boots&design=oak&author=ada&sort-key"),
        ("?monkey=3&key=&passenger=ada; key = b", "?monkey=3&key=&passenger=ada; key = b"),
    ],
)
def test_presets_hide_and_leave_alone(text: str, shown: str) -> None:
    assert masked(text)[0] == shown


@given(st.integers(10**11, 10**14))
def test_exactly_one_check_digit_is_right(number: int) -> None:
    assert sum(is_luhn(f"{number}{digit}") for digit in range(10)) == 1


@given(st.text(max_size=40), st.sampled_from(sorted(CANARIES)), st.text(max_size=40))
def test_a_canary_is_hidden_wherever_it_stands(before: str, kind: str, after: str) -> None:
    text = f"{before} {CANARIES[Preset(kind)]} {after}"
    shown, counts = masked(text)
    assert CANARIES[Preset(kind)] not in shown
    assert sum(counts.values()) >= 1


def test_what_is_hidden_is_counted_by_kind() -> None:
    assert masked("a@b.example, c@d.example, 4111111111111111")[1] == {"email": 2, "payment_card": 1}
    assert masked("x-api-key: q7&api_key=q8")[1] == {"api_key": 2}


ADVERSARIAL = (
    *("a", "@", "a@", "a.", "4 ", "4111 1111 1111 1112 ", "4", "sk-", "eyJaaaaaaaaa.", "://a", "bearer ", "token:1"),
    *("-----BEGIN PRIVATE KEY-----", "password=", 'password:"', 'secret:\\"', "key-"),
    *("?key=", ";a=", ";a=?key=", "%2525", "&" + "a" * 128),
)


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_time_is_linear_for_texts_made_to_be_slow(unit: str) -> None:
    """Sixteen times the text takes about sixteen times as long, and not 256 times."""

    def took(size: int) -> float:
        event = Masker(Masking(limit_s=600)).event()
        began = time.thread_time()
        event.text((unit * (size // len(unit) + 1))[:size])
        return time.thread_time() - began

    small = min(took(1 << 16) for _ in range(2))
    assert took(1 << 20) < 64 * small + 0.2


# Patterns and functions of the host.


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"a+", "without a bound"),
        (r"a*b", "without a bound"),
        (r"(a{1,9}){1,9}b", "inside another"),
        (r"(?:a|aa){1,30}b", "inside a repeat"),
        (r"a{1,99}a{1,99}a{1,99}a", "ways"),
        (r"(a)\1", "refers back"),
        (r"a{0,9}", "empty"),
        (r".{9999}.{9999}", "more than"),
        (r"(", "not a regular expression"),
        (rb"a", "of bytes"),
    ],
)
def test_a_pattern_that_may_be_slow_is_refused(pattern: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        linear(pattern)


def test_presets_are_several_and_a_single_text_is_refused_by_that_name() -> None:
    with pytest.raises(ValueError, match=r"presets is the text 'email': expected several presets: \('email',\)"):
        Masking("email")
    with pytest.raises(ValueError, match="there is no preset 'mail': expected one of email"):
        Masking(("mail",))


@pytest.mark.parametrize("pattern", [r"ORD-[0-9]{8}", r"(?:[a-z]{1,9}+-){1,9}+x", r"\b(?:AB|C)(?=\d)", r"(?>a{1,9})b"])
def test_a_pattern_with_bounds_is_accepted(pattern: str) -> None:
    assert linear(pattern).pattern.pattern == pattern


@given(st.integers(0, 3 * PIECE), st.text("ab-1", max_size=60))
@example(PIECE - 2, "a-1a-1")
def test_searching_in_pieces_finds_what_searching_at_once_finds(before: int, text: str) -> None:
    pattern: LinearPattern = linear(r"(?<!1)a{1,3}-1(?!b)")
    whole = "b" * before + text
    found = pattern.spans(whole, lambda _: None)
    assert found == [match.span() for match in pattern.pattern.finditer(whole)]


def test_the_host_s_patterns_and_function_are_applied_after_the_presets() -> None:
    seen: list[str] = []

    def function(text: str) -> str:
        seen.append(text)
        return text.replace("Ada", "[name]")

    masking = Masking((Preset.EMAIL,), patterns={"order": r"ORD-[0-9]{8}"}, function=function)
    assert masked("Ada, a@b.example: ORD-12345678", masking) == (
        "[name], [email]: [order]",
        {"email": 1, "order": 1, "function": 1},
    )
    assert seen == ["Ada, [email]: [order]"]


@pytest.mark.parametrize(
    "settings_of",
    [
        lambda: Masking(["phone"]),
        lambda: Masking(patterns={"": "a"}),
        lambda: Masking(patterns={"email": "a"}),
        lambda: Masking(patterns={"x": "(a+)+"}),
        lambda: Masking(limit_s=0),
        lambda: Masking(key=b"short"),
    ],
)
def test_wrong_settings_raise(settings_of: Callable[[], Masking]) -> None:
    with pytest.raises(ValueError, match=r"expected|pattern"):
        settings_of()


# It fails closed.


def broken(text: str) -> str:
    raise RuntimeError(f"cannot mask {text}")


@pytest.mark.parametrize(
    ("function", "why"),
    [(broken, "RuntimeError"), (lambda text: None, "no str"), (lambda text: time.sleep(9) or text, "took over")],
)
def test_a_text_that_cannot_be_masked_is_hidden_whole(function: Any, why: str) -> None:
    event = Masker(Masking(function=function, limit_s=0.05)).event()
    assert event.text("Ada's secret") == FAILED_TEXT
    assert event.counts == {"failed": 1}
    assert why in event.failure
    assert "Ada" not in event.failure


def test_presets_that_take_too_long_hide_the_whole_text() -> None:
    event = Masker(Masking(limit_s=1e-6)).event()
    assert event.text("4 " * 100_000) == FAILED_TEXT
    assert event.text("the rest of the event") == FAILED_TEXT


def test_calls_that_hang_do_not_use_up_threads() -> None:
    release, calls = threading.Event(), TimedCalls()
    before = threading.active_count()
    for _ in range(MAX_STUCK + 3):
        with pytest.raises(CallFailed):
            calls.call(lambda _: release.wait(60), None, 0.01)
    assert threading.active_count() - before <= MAX_STUCK
    with pytest.raises(CallFailed, match="earlier calls"):
        calls.call(lambda _: 1, None, 1.0)
    release.set()
    until(lambda: threading.active_count() == before)
    assert calls.call(lambda given: given + 1, 1, 20.0) == 2
    calls.close()


# Every text of every event.


@pytest.mark.parametrize("kind", sorted(CANARIES))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.TYPE)
def test_no_canary_is_in_the_encoded_event_wherever_it_was(model: type[Record], kind: str) -> None:
    canary, places = CANARIES[Preset(kind)], []
    for place, fields in planted(model, canary):
        masker = Masker(Masking())
        event = encoded(model, fields, masker, key=f"id {canary}")
        assert canary.encode() not in event.message.value, place
        assert canary.encode() not in (event.message.key or b""), place
        assert not [name for name, value in event.message.headers if canary.encode() in value], place
        payload = content(event)
        assert payload["masked"][kind] >= 1, place
        model.model_validate(payload)
        places.append(place)
    assert len(places) >= 3


@given(
    st.recursive(
        st.sampled_from([*CANARIES.values(), 4111111111111111, 4111111111111111.0, "x", None, b"4111111111111111"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", *CANARIES.values()]), inner),
        max_leaves=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_canary_survives_in_nested_values(value: Any) -> None:
    sent = encoded(ToolReturned, {"call_id": "c", "tool": "t", "result": value}, Masker(Masking())).message.value
    assert not [canary for canary in (*CANARIES.values(), "4111111111111111") if canary.encode() in sent]


def test_values_under_the_name_of_a_secret_are_hidden() -> None:
    arguments = {"headers": {"Authorization": "q7", "Accept": "json"}, "password": ["x", 7], "max_tokens": 5}
    event = content(encoded(ToolCalled, {"call_id": "c", "tool": "t", "arguments": arguments}, Masker(Masking())))
    assert event["arguments"] == {
        "headers": {"Authorization": "[api_key]", "Accept": "json"},
        "password": ["[api_key]", "[api_key]"],
        "max_tokens": 5,
    }


@pytest.mark.parametrize(
    "name",
    [
        *("clientSecret", "SecretAccessKey", "SessionToken", "refreshToken", "userPassword", "openaiApiKey"),
        *("SECRET_KEY", "secretKey", "ｐａｓｓｗｏｒｄ"),
    ],
)
def test_names_of_secrets_are_known_in_any_spelling(name: str) -> None:
    arguments = {name: "q7", "maxTokens": 5, "isSecretive": "q8"}
    event = content(encoded(ToolCalled, {"call_id": "c", "tool": "t", "arguments": arguments}, Masker(Masking())))
    assert event["arguments"] == {name: "[api_key]", "maxTokens": 5, "isSecretive": "q8"}


@pytest.mark.parametrize("number", [4111111111111111, 4111111111111111.0, 41111111111111110000000])
def test_a_number_to_hide_is_hidden_wherever_it_stands(number: float) -> None:
    """Also one of more than 64 bits, which is described, and in fields that an event's parts do not know."""
    masking = Masking(patterns={"account": r"4111[0-9]{12,20}"})
    for model in MODELS:
        for place, fields in planted(model, number):
            try:
                sent = encoded(model, fields, Masker(masking)).message.value
            except InvalidEvent:  # a number where none may be
                continue
            assert b"4111" not in sent, place


def test_values_under_the_name_of_a_secret_are_hidden_in_parts_of_an_event_that_do_not_know_it() -> None:
    fields = {"call_id": "c", "choice": 0, "model": "m", "sampling": {"temperature": 1.0, "api_key": "q7", "pwd": {}}}
    event = content(encoded(ModelCalled, CALL | fields, Masker(Masking())))
    assert (event["sampling"]["api_key"], event["sampling"]["pwd"]) == ("[api_key]", "[api_key]")


def test_an_exception_is_masked_before_it_is_cut(headrace: Headrace, notes: list[Note]) -> None:
    text = "x" * (1_000 - len("LookupError: ") - 10) + " ada.canary@mill.example"
    with pytest.raises(LookupError), headrace.trajectory(task_id="q", agent="a") as t, t.tool("search"):
        raise LookupError(text)
    for note in notes[2:]:
        sent = encode_note(note, "s", 1 << 20, Masker(Masking())).message.value
        assert b"ada.canary" not in sent


def test_masked_identifiers_stay_different_from_one_another() -> None:
    masker = Masker(Masking(key=b"k" * 16))

    def started(group: str) -> dict[str, Any]:
        return content(encoded(TrajectoryStarted, {"task_id": "t", "agent": "a", "group_id": group}, masker))

    ada, bob = started("ada@mill.example"), started("bob@mill.example")
    assert ada["group_id"] != bob["group_id"]
    assert ada["group_id"] == started("ada@mill.example")["group_id"]
    assert re.fullmatch(r"masked-[0-9a-f]{16}", ada["group_id"])
    again = Masker(Masking(key=b"k" * 16)).event()
    assert again.identifier("ada@mill.example") == ada["group_id"], "in another process with the same key"
    assert Masker(Masking()).event().identifier("ada@mill.example") != ada["group_id"]


@given(st.uuids())
def test_ids_that_the_sdk_makes_are_never_masked(unique: Any) -> None:
    assert Masker(Masking(function=lambda text: "gone")).event().identifier(str(unique)) == str(unique)


# Token ids decode to the text.

CALL = {"model": "m", "context_ids": [1, 2], "sampled_ids": array("i", [3]), "logprobs": [-0.5],
        "prefix_length": 4, "prefix_sha256": "ab", "version_spans": [{"version": 1, "start": 0, "end": 1}]}  # fmt: skip


def assert_without_tokens(event: dict[str, Any]) -> None:
    assert [event[name] for name in ("context_ids", "sampled_ids", "logprobs", "prefix_sha256")] == [None] * 4
    assert (event["prefix_length"], event["version_spans"]) == (0, [])
    assert event["hidden"] == ["context_ids", "logprobs", "sampled_ids"]


def test_without_a_decoder_no_token_ids_are_sent() -> None:
    sent = encoded(ModelCalled, CALL, Masker(Masking()))
    assert_without_tokens(content(sent))
    assert sent.altered["tokens_hidden"] == 1


@pytest.mark.parametrize("wire", [False, True])
def test_token_ids_are_sent_if_their_text_contains_nothing_to_hide(wire: bool) -> None:
    seen: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        seen.append(ids)
        return "an ordinary text"

    fields = CALL | ({"context_ids": base64.b64encode(array("i", [1, 2]).tobytes()).decode()} if wire else {})
    event = ModelCalled.model_validate(content(encoded(ModelCalled, fields, Masker(Masking(decode=decode)))))
    assert (list(event.context_ids or ()), list(event.sampled_ids or ()), event.hidden) == ([1, 2], [3], [])
    assert seen == [[1, 2, 3]]


@pytest.mark.parametrize("decode", [lambda ids: "mail a@b.example", lambda ids: 1 / 0, lambda ids: None])
def test_token_ids_whose_text_must_be_hidden_or_is_unknown_are_not_sent(decode: Any) -> None:
    masker = Masker(Masking(decode=decode))
    assert_without_tokens(content(encoded(ModelCalled, CALL, masker)))


def test_masked_messages_hide_the_token_ids_of_the_call_and_of_later_calls() -> None:
    masker = Masker(Masking(decode=lambda ids: "fine"))
    messages = [{"role": "user", "content": "I am ada.canary@mill.example"}]
    first = content(encoded(ModelCalled, CALL | {"messages": messages}, masker))
    assert_without_tokens(first)
    assert first["messages"] == [{"role": "user", "content": "I am [email]"}]
    assert_without_tokens(content(encoded(ModelCalled, CALL, masker)))
    assert content(encoded(ModelCalled, CALL, masker, key="another"))["hidden"] == []


# From the host's call to the disk.


def test_the_spool_holds_no_canary_and_failures_are_counted(tmp_path: Path, state_folder: Path) -> None:
    def function(text: str) -> str:
        if "explode" in text:
            raise ValueError(text)
        return text.replace("Ada", "[name]")

    sdk = Headrace(
        NOWHERE, source="test", flush_deadline_s=0, spool_folder=tmp_path, masking=Masking(function=function)
    )
    with sdk.trajectory(task_id="ada.canary@mill.example", agent="a", task={"for": "Ada"}) as t:
        with t.tool("pay", {"card": 4111111111111111, "why": "explode canary"}) as call:
            call.result = {"to": ["ada.canary@mill.example", b"sk-canary0123456789abcdef"]}
        t.model_called("m", context_ids=[7], sampled_ids=[8], messages=[{"role": "user", "content": "I am Ada"}])
        t.end(answer="Ada lives at ada.canary@mill.example")
    sdk.feedback(t.id, "score", 1.0, comment="canary? Ada says 4111 1111 1111 1111")
    sdk.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"pay" in written, "the events are on disk"
    for canary in (b"ada.canary", b"sk-canary", b"4111", b"Ada", b"explode"):
        assert canary not in written
    stats = sdk.stats
    assert (stats.spooled, stats.dropped) == (6, {})
    assert stats.altered == {"masking_failed": 1, "tokens_hidden": 1}


def test_the_log_names_no_identifier_that_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0, masking=Masking())
    names: list[Any] = [4111111111111111, "ada.canary@mill.example\ud800"]
    for name in names:
        sdk.trajectory(task_id=name, agent="a")
    sdk.gateway_session("ada.canary@münchen.example")
    sdk.close()
    sdk._sender.counters.wait_until_logged(20)
    assert "task_id" in caplog.text
    assert "session_id" in caplog.text
    assert not [canary for canary in ("4111111111111111", "ada.canary") if canary in caplog.text]


def test_the_host_s_thread_masks_nothing(headrace: Headrace) -> None:
    threads: set[int] = set()

    def function(text: str) -> str:
        threads.add(threading.get_ident())
        return text

    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0, masking=Masking(function=function))
    with sdk.trajectory(task_id="q", agent="a") as t:
        t.end(answer="text")
    until(lambda: bool(threads))
    sdk.close()
    assert threading.get_ident() not in threads


def test_unmasked_events_are_as_before() -> None:
    note = Note(EVENTS, "t", 0, 1, Context(), TrajectoryEnded, {"answer": "a@b.example", "error": string.ascii_letters})
    assert json.loads(encode_note(note, "s", 10_000).message.value)["answer"] == "a@b.example"
    assert content(encoded(FeedbackGiven, {"signal": "s", "value": 1.0}, Masker(Masking())))["masked"] == {}
