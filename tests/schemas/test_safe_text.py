"""Secrets are redacted and control characters escaped in any context, in time linear in the text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.safe_text import (
    HIDDEN,
    holds_secret,
    plain_text,
    printable,
    printable_json,
    printable_lines,
    redacted,
    redacted_values,
)

SECRET = "cAnArY-s3cret"
WITH_SECRETS = [
    f"http://reader:{SECRET}@127.0.0.1:8123",
    f"http://{SECRET}@host/",
    f"https://reader:{SECRET}@127.0.0.1:8123/?a=b",
    f"s3://key:{SECRET}@bucket/prefix",
    f"http://reader:{SECRET}/slash@host:8123",
    f"http://reader:at@{SECRET}@host:8123",
    f"reader:{SECRET}@broker:9092",
    f"one:{SECRET}@broker:9092,two:{SECRET}@other:9092",
    f"HEADRACE_KAFKA is 'reader:{SECRET}@broker:9092'",
    f"http://host:8123/?user=reader&password={SECRET}&database=x",
    f"http://host/?x=1&X-Amz-Signature={SECRET}",
    f"http://host/v1?api_key={SECRET}",
    f"https://host/blob?sv=1&sig={SECRET}",
    f"https://host/blob?token={SECRET}",
    f"{{'sasl_plain_password': '{SECRET}'}}",
    f'{{"password": "{SECRET} with spaces"}}',
    f'sasl.jaas.config=… username="u" password="{SECRET}";',
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"secret: {SECRET}",
    f"Authorization: Bearer {SECRET}abcdefgh",
    f"Authorization: Basic {SECRET}abcdefgh",
]
WITHOUT = [
    "http://127.0.0.1:8123/?query=SELECT+1",
    "127.0.0.1:9092",
    "s3://bucket/prefix/model@v1",
    "events[2]@7104, letter 0:17",
    "tokens: 12, token=7 of 9",
    "file:///data/objects",
    "at 10:20:30 to someone@example.org",
    "http://127.0.0.1:80/a@b",
]


@pytest.mark.parametrize("text", WITH_SECRETS)
def test_a_secret_is_hidden_and_the_rest_stays(text: str) -> None:
    shown = redacted(f"cannot reach {text} now")
    assert SECRET not in shown
    assert HIDDEN in shown
    assert shown.startswith("cannot reach ")
    assert holds_secret(text)
    assert redacted(shown) == shown
    assert SECRET not in redacted(text)


@pytest.mark.parametrize("text", WITHOUT)
def test_text_without_secrets_is_returned_unchanged(text: str) -> None:
    assert redacted(text) == text
    assert not holds_secret(text)


def test_a_redacted_address_keeps_its_host() -> None:
    assert redacted(f"http://u:{SECRET}@h:8123/x") == "http://***@h:8123/x"
    assert redacted(f"u:{SECRET}@one:1,u:{SECRET}@two:2") == "***@one:1,***@two:2"


def test_values_are_also_hidden_by_their_names() -> None:
    values = {
        "password": SECRET,
        "judge": {"api_key": SECRET, "url": f"http://u:{SECRET}@h", "tokens": 3, "key": "task"},
        "several": [f"http://u:{SECRET}@h", 1, None, True],
        "secret": None,
    }
    assert redacted_values(values) == {
        "password": HIDDEN,
        "judge": {"api_key": HIDDEN, "url": "http://***@h", "tokens": 3, "key": "task"},
        "several": ["http://***@h", 1, None, True],
        "secret": None,
    }


@given(st.text(st.characters(exclude_categories=()), max_size=80))
def test_no_shown_text_contains_terminal_control_sequences(text: str) -> None:
    shown = printable(text)
    assert "\n" not in shown
    assert all(each.isprintable() or (each.isspace() and each > "\xa0") for each in shown)
    assert not set(shown) & set("\x1b\x9b\r\u202e\u2066\u2028\x7f\0")
    assert printable(shown) == shown
    assert printable_lines(text).split("\n") == [printable(line) for line in text.split("\n")]
    assert all(each.isprintable() or each.isspace() for each in plain_text(text))


@pytest.mark.parametrize(
    "character",
    [*"\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe00\ufe0f\uffa0\U000e0100\U000e01ef\u200b\u200d\u2060\ufeff"],
)
def test_an_invisible_character_is_escaped(character: str) -> None:
    escape = rf"\u{ord(character):04x}" if ord(character) < 0x10000 else rf"\U{ord(character):08x}"
    assert printable(f"t-1{character}") == f"t-1{escape}"
    shown = printable_json({"name": character})
    assert character not in shown
    assert json.loads(shown) == {"name": character}


def test_printable_characters_of_every_script_are_kept() -> None:
    for text in ("אב-1 2", "مرحبا", "ខ្មែរ", "한국어", "e\u0301", "┌─x─┐ │ 1 │ └───┘", "⠓"):
        assert printable(text) == text


def test_unprintable_characters_are_escaped() -> None:
    assert printable("a\x1b[31m\nb\u202ec\ud800\U000e0001") == r"a\x1b[31m\nb\u202ec\ud800\U000e0001"
    assert printable("größer → 日本\u3000語 🙂") == "größer → 日本\u3000語 🙂"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
def test_escaped_json_stays_valid_json(value: object) -> None:
    for indent in (None, 1):
        text = printable_json(value, indent=indent)
        assert json.loads(text) == value
        assert printable_lines(text) == text


def test_a_lone_surrogate_can_be_printed_as_json() -> None:
    text = printable_json({"a": "\ud800"})
    assert text.encode() == rb'{"a": "\ud800"}'


@pytest.mark.parametrize(
    "piece",
    [
        "://a:b",
        "?key",
        "a",
        "a:",
        "password",
        "password=",
        "@",
        "://",
        "a:b@",
        '"a:',
        "bearer ",
        " ",
        "?a=",
        "://:",
        "&",
    ],
)
def test_redaction_takes_time_linear_in_the_text(piece: str) -> None:
    def seconds(size: int) -> float:
        text, best = piece * (size // len(piece)), float("inf")
        for _ in range(3):
            begun = time.process_time()
            redacted(text)
            best = min(best, time.process_time() - begun)
        return best

    # 16 times the text: a quadratic search takes 256 times as long.
    assert seconds(320_000) < 64 * seconds(20_000) + 0.05
