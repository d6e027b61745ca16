"""JSON for server-sent events: one line for every client, whatever is in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.framing.json_bytes import encode, event, quote, well_formed
from tests.agents.gateway.framing.answers import texts

any_text = st.text(st.characters(codec=None))


@given(st.one_of(texts, any_text))
def test_a_text_is_one_line_and_reads_as_its_well_formed_self(text: str) -> None:
    for written in (quote(text), encode(text)):
        line = written.decode()
        assert line.splitlines() == [line]
        assert json.loads(line) == well_formed(text)


@given(any_text, any_text)
def test_well_formed_does_not_depend_on_cuts(left: str, right: str) -> None:
    assert well_formed(left + right) == well_formed(left) + well_formed(right)
    assert len(well_formed(left)) == len(left)


def test_a_surrogate_becomes_a_replacement_character_and_other_texts_stay() -> None:
    assert well_formed("a\ud83d\ude00é😀") == "a\ufffd\ufffdé😀"
    assert quote("é😀") == '"é😀"'.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"x": number})


def test_an_event() -> None:
    assert event(b"ping", encode({"a": [1, None]})) == b'event: ping\ndata: {"a":[1,null]}\n\n'
