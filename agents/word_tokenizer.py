"""Word-level tokenizers of the reference systems: one token per word, in a fixed order, so that text and token ids are
equivalent.

    WordTokenizer(("<pad>", "<end>", "answer"), …).encode("answer <end>") → [2, 1]
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WordTokenizer:
    """A vocabulary, for encoding here and as the files of a Hugging Face tokenizer."""

    words: tuple[str, ...]
    """All tokens; the position of a token is its id."""
    special: tuple[str, ...]
    """Those that are no words of a text, such as the end of a turn."""
    pad: str
    """Token that fills batches."""
    end: str
    """Token that ends a turn."""
    owner: str
    """Whose it is, for errors: ``search agent``."""
    chat_template: str
    """Jinja template that makes a context of the messages of a chat."""
    ids: dict[str, int] = field(init=False, repr=False, compare=False)
    """Ids by word."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", {word: number for number, word in enumerate(self.words)})

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """Return the token ids of ``words``; raise a ``KeyError`` that names a word outside the vocabulary."""
        try:
            return [self.ids[word] for word in words]
        except KeyError as error:
            raise KeyError(f"{error.args[0]!r} is not a word of the {self.owner}'s vocabulary") from None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, whose words are separated by white space; ``KeyError`` for an unknown
        word."""
        return self.encode_words(text.split())

    def decode_words(self, token_ids: Iterable[int]) -> list[str]:
        """Return the words of ``token_ids``; raise ``IndexError`` for an id outside the vocabulary."""
        return [self.words[token_id] for token_id in token_ids]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ``token_ids``: the inverse of ``encode`` up to white space."""
        return " ".join(self.decode_words(token_ids))

    def tokenizer_json(self) -> dict[str, Any]:
        """Return the vocabulary as a Hugging Face ``tokenizer.json``: a word-level model, split at white space."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": self.ids[word], "content": word, **flags} for word in self.special],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self.ids, "unk_token": self.pad},
        }

    def tokenizer_config(self) -> dict[str, Any]:
        """Return the ``tokenizer_config.json`` for ``tokenizer_json``."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": self.pad,
            "eos_token": self.end,
            "model_max_length": 1024,
            "clean_up_tokenization_spaces": False,
            "chat_template": self.chat_template,
        }
