"""The vocabulary is a bijection of words and ids, and the tokenizer of Hugging Face agrees with it."""

import json
from pathlib import Path
from random import Random

import pytest

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import demonstrate
from tests.agents.coder.players import training_task

BASE = Path(words.__file__).with_name("base")


def test_no_word_has_two_ids() -> None:
    assert len(set(words.VOCABULARY)) == len(words.VOCABULARY)


def test_text_survives_encoding_and_decoding() -> None:
    text = "# rate 7 edit billing.py charge : return x * 7 <end>"
    assert words.decode(words.encode(text)) == text


def test_the_base_model_was_made_for_these_words() -> None:
    assert json.loads((BASE / "tokenizer.json").read_text()) == words.tokenizer_json()
    assert json.loads((BASE / "config.json").read_text())["vocab_size"] == len(words.VOCABULARY)


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(KeyError, match="'lambda'"):
        words.encode("return lambda")


def test_ids_outside_the_vocabulary_can_be_shown() -> None:
    assert words.decode((0, 10_000, -1)) == "<pad> #10000 #-1"


def test_the_tokenizer_of_hugging_face_gives_the_same_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(words.tokenizer_json()))
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    for example in demonstrate(training_task(3), Random(3)):
        assert tokenizer.encode(words.decode(example.token_ids)).ids == list(example.token_ids)


def test_the_chat_template_makes_the_context_of_the_harness() -> None:
    jinja2 = pytest.importorskip("jinja2")
    chat = [
        {"role": "user", "content": "repair charge [Token usage: 1 %]"},
        {"role": "assistant", "content": "grep charge"},
        {"role": "user", "content": "error: nothing found [Token usage: 4 %]"},
    ]
    text = jinja2.Template(words.CHAT_TEMPLATE).render(messages=chat, add_generation_prompt=True)
    assert " ".join(text.split()) == (
        "<task> repair charge [Token usage: 1 %] <agent> grep charge <end> "
        "<error> nothing found [Token usage: 4 %] <agent>"
    )
