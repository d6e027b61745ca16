"""The search agent's vocabulary: one token per word, in a fixed order, so that text and token ids are equivalent.

    encode("search_corpus ada employer <end>") → [24, 57, 41, 1]

The shipped base model depends on the order: append words, never insert them. ``tokenizer_json`` renders the same table
for Hugging Face and vLLM; a test compares the two. ``CHAT_TEMPLATE`` makes a context of the messages of a chat:

    user       what is the seat of the employer of ada ? …     <task> what is … <agent>
    assistant  search_corpus ada employer                      search_corpus ada employer <end>
    user       c17 d03 employer of ada is acme …               <result> c17 d03 … <agent>
"""

from collections.abc import Iterable
from typing import Any

PAD, END, TASK, RESULT, ERROR, AGENT = "<pad>", "<end>", "<task>", "<result>", "<error>", "<agent>"
"""``<end>`` ends a turn of the model; ``<agent>`` starts one."""

USAGE = ("[Token", "usage:", "/", "]")
DIGITS = tuple("0123456789")

SEARCH, GREP, READ, PRUNE, ANSWER = "search_corpus", "grep_corpus", "read_document", "prune_chunks", "answer"
TOOLS = (SEARCH, GREP, READ, PRUNE)

STOP_WORDS = ("what", "is", "the", "of", "?")
NOTICES = ("consider", "only", "pruning", "invalid", "action", "refused", "nothing", "found")

RELATIONS = (
    *("employer", "friend", "home", "hobby"),
    *("seat", "boss", "product", "rival"),
    *("country", "river", "mayor", "twin"),
)

PEOPLE = (
    *("ada", "bruno", "carla", "dario", "elena", "felix", "greta", "hugo", "irina", "jonas"),
    *("karin", "lukas", "maria", "nadia", "oscar", "petra", "quinn", "rosa", "simon", "tessa"),
)
COMPANIES = (
    *("acme", "borea", "calyx", "delphi", "everon", "fathom", "gantry"),
    *("halcyon", "ibex", "juniper", "kestrel", "lumen", "mirador", "norden"),
)
CITIES = (
    *("arles", "bergen", "cadiz", "delft", "exeter", "fulda"),
    *("ghent", "hobart", "izmir", "jena", "kyoto", "lima"),
)
HOBBIES = ("chess", "fencing", "judo", "opera", "pottery", "rowing", "sailing", "yoga")
PRODUCTS = ("bicycles", "candles", "engines", "lamps", "pianos", "shoes", "tea", "watches")
COUNTRIES = ("brazil", "canada", "egypt", "ghana", "india", "japan", "norway", "spain")
RIVERS = ("amber", "dart", "ebro", "loire", "neckar", "oder", "tagus", "volta")

DOCUMENTS = tuple(f"d{number:02d}" for number in range(16))
CHUNKS = tuple(f"c{number:02d}" for number in range(64))

VOCABULARY: tuple[str, ...] = (
    *(PAD, END, TASK, RESULT, ERROR, AGENT),
    *USAGE,
    *DIGITS,
    *(*TOOLS, ANSWER),
    *STOP_WORDS,
    *NOTICES,
    *RELATIONS,
    *(*PEOPLE, *COMPANIES, *CITIES, *HOBBIES, *PRODUCTS, *COUNTRIES, *RIVERS),
    *DOCUMENTS,
    *CHUNKS,
)
"""All tokens; the position of a token is its id."""

TOKEN_IDS: dict[str, int] = {word: number for number, word in enumerate(VOCABULARY)}
END_ID = TOKEN_IDS[END]
PAD_ID = TOKEN_IDS[PAD]

SEARCHABLE = frozenset(
    (*STOP_WORDS[:-1], *RELATIONS, *PEOPLE, *COMPANIES, *CITIES, *HOBBIES, *PRODUCTS, *COUNTRIES, *RIVERS)
)
"""Words that a query or a pattern may contain."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set content = message['content'] or '' -%}"
    f"{{%- if message['role'] == 'assistant' -%}}{{{{ '{AGENT} ' + content + ' {END} ' }}}}"
    f"{{%- elif loop.first -%}}{{{{ '{TASK} ' + content + ' ' }}}}"
    f"{{%- elif content.startswith('error: ') -%}}{{{{ '{ERROR} ' + content[7:] + ' ' }}}}"
    f"{{%- else -%}}{{{{ '{RESULT} ' + content + ' ' }}}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{AGENT}' }}}}{{%- endif -%}}"
)
"""Jinja template of a chat: first the question, then actions and their results in turn. A result that begins with
``error:`` is an error."""


def encode_words(words: Iterable[str]) -> list[int]:
    """Return the token ids of ``words``; raise a ``KeyError`` that names a word outside the vocabulary."""
    try:
        return [TOKEN_IDS[word] for word in words]
    except KeyError as error:
        raise KeyError(f"{error.args[0]!r} is not a word of the search agent's vocabulary") from None


def encode(text: str) -> list[int]:
    """Return the token ids of ``text``, whose words are separated by white space; ``KeyError`` for an unknown word."""
    return encode_words(text.split())


def decode_words(token_ids: Iterable[int]) -> list[str]:
    """Return the words of ``token_ids``; raise ``IndexError`` for an id outside the vocabulary."""
    return [VOCABULARY[token_id] for token_id in token_ids]


def decode(token_ids: Iterable[int]) -> str:
    """Return the text of ``token_ids``: the inverse of ``encode`` up to white space."""
    return " ".join(decode_words(token_ids))


def tokenizer_json() -> dict[str, Any]:
    """Return the vocabulary as a Hugging Face ``tokenizer.json``: a word-level model, split at white space."""
    special = [PAD, END, TASK, RESULT, ERROR, AGENT]
    added = [
        {
            "id": TOKEN_IDS[word],
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in special
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": TOKEN_IDS, "unk_token": PAD},
    }


def tokenizer_config() -> dict[str, Any]:
    """Return the ``tokenizer_config.json`` for ``tokenizer_json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
