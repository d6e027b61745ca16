"""Words and ids are equivalent, here and in the tokenizer file of the shipped base model."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.swarm import vocabulary as words

BASE = Path(words.__file__).with_name("base")


def test_no_word_occurs_twice() -> None:
    assert len(set(words.VOCABULARY)) == len(words.VOCABULARY)


@given(st.lists(st.integers(0, len(words.VOCABULARY) - 1)))
def test_decoding_and_encoding_is_the_identity(token_ids: list[int]) -> None:
    assert words.encode(words.decode(token_ids)) == token_ids


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(KeyError, match="zebra"):
        words.encode("trace zebra")


def test_the_shipped_tokenizer_is_this_vocabulary() -> None:
    assert json.loads((BASE / "tokenizer.json").read_text()) == words.tokenizer_json()


def test_the_model_has_a_row_for_every_word_and_ends_on_the_end_token() -> None:
    config = json.loads((BASE / "config.json").read_text())
    assert config["vocab_size"] == len(words.VOCABULARY)
    assert config["eos_token_id"] == words.END_ID
