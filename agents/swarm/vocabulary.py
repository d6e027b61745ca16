"""The orchestrator's vocabulary: one token per word, in a fixed order, so that text and token ids are equivalent.

    encode("assign_task alpha ada <end>") → [10, 54, 69, 1]

The shipped base model depends on the order: append words, never insert them. A test compares the table with the base
model's ``tokenizer.json``. Names of entities and relations are those of the search agent, whose worlds the tasks use.
"""

from headrace.agents.search import vocabulary as search
from headrace.agents.word_tokenizer import WordTokenizer

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

_TOKENIZER = WordTokenizer(
    VOCABULARY,
    (PAD, END, TASK, RESULT, ERROR, AGENT),
    pad=PAD,
    end=END,
    owner="orchestrator",
    chat_template=CHAT_TEMPLATE,
)
TOKEN_IDS = _TOKENIZER.ids
END_ID = TOKEN_IDS[END]
PAD_ID = TOKEN_IDS[PAD]
encode_words, encode = _TOKENIZER.encode_words, _TOKENIZER.encode
decode_words, decode = _TOKENIZER.decode_words, _TOKENIZER.decode
tokenizer_json, tokenizer_config = _TOKENIZER.tokenizer_json, _TOKENIZER.tokenizer_config
