"""The orchestrator's vocabulary: one token per word, in a fixed order, so that text and token ids are equivalent.

    encode("assign_task alpha ada <end>") → [10, 54, 69, 1]

The shipped base model depends on the order: append words, never insert them. A test compares the table with the base
model's ``tokenizer.json``. Names of entities and relations are those of the search agent, whose worlds the tasks use.
"""

from collections.abc import Iterable
from typing import Any

from headrace.agents.search import vocabulary as search

PAD, END, TASK, RESULT, ERROR, AGENT = "<pad>", "<end>", "<task>", "<result>", "<error>", "<agent>"
"""``<end>`` ends a turn of the model; ``<agent>`` starts one."""

FIND, READ, CREATE, ASSIGN, ANSWER = "find_page", "read_page", "create_subagent", "assign_task", "answer"
TOOLS = (FIND, READ, CREATE, ASSIGN)

LIST, TRACE, OF = "list", "trace", "of"
"""Words of questions."""
NOTHING, TIMEOUT, INVALID, ACTION = "nothing", "timeout", "invalid", "action"
"""Words of observations: nothing was found, the search timed out, the turn was not an action."""
FILLERS = ("find", "facts", "about", "help", "look", "please")
"""Words of prompts that name neither an entity nor a relation."""

STEPS = tuple(f"t{number:02d}" for number in range(32))
"""Number of critical steps left."""

NAMES = ("alpha", "bravo", "delta", "omega")
"""Names of sub-agents."""

RELATIONS, DOCUMENTS, CHUNKS = search.RELATIONS, search.DOCUMENTS, search.CHUNKS
ENTITIES = (*search.PEOPLE, *search.COMPANIES, *search.CITIES)
"""Entities that may have a page."""

VOCABULARY: tuple[str, ...] = (
    *(PAD, END, TASK, RESULT, ERROR, AGENT),
    *(*TOOLS, ANSWER),
    *(LIST, TRACE, OF),
    *(NOTHING, TIMEOUT, INVALID, ACTION),
    *FILLERS,
    *STEPS,
    *NAMES,
    *RELATIONS,
    *(*ENTITIES, *search.HOBBIES, *search.PRODUCTS, *search.COUNTRIES, *search.RIVERS),
    *DOCUMENTS,
    *CHUNKS,
)
"""All tokens; the position of a token is its id."""

TOKEN_IDS: dict[str, int] = {word: number for number, word in enumerate(VOCABULARY)}
END_ID = TOKEN_IDS[END]
PAD_ID = TOKEN_IDS[PAD]

PROMPT_WORDS = frozenset((*FILLERS, OF, *RELATIONS, *ENTITIES))
"""Words that a prompt of a sub-agent may contain."""

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
        raise KeyError(f"{error.args[0]!r} is not a word of the orchestrator's vocabulary") from None


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
        for word in (PAD, END, TASK, RESULT, ERROR, AGENT)
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
