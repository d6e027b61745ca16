"""The coder's vocabulary: one token per word, in a fixed order, so that text and token ids are equivalent.

    encode("edit billing.py charge : return x * 7 <end>") → [115, 163, …, 1]

Files, calls and results are words separated by spaces; Python reads them as they are (``def fee ( x ) : return 2``).
The shipped base model depends on the order: append words, never insert them. ``tokenizer_json`` renders the same table
for Hugging Face and vLLM; a test compares the two.
"""

from collections.abc import Iterable

from headrace.agents.word_tokenizer import WordTokenizer

PAD, END, TASK, RESULT, ERROR, AGENT = "<pad>", "<end>", "<task>", "<result>", "<error>", "<agent>"
"""``<end>`` ends a turn of the model; ``<agent>`` starts one."""
SUMMARIZE, SUMMARY, STATE = "<summarize>", "<summary>", "<state>"
"""``<summarize>`` is the synthetic request for a summary; the next context begins with the summary and the state."""
NEWLINE = "<nl>"
"""Ends a line of a file in a result."""
SPECIAL = (PAD, END, TASK, RESULT, ERROR, AGENT, SUMMARIZE, SUMMARY, STATE, NEWLINE)

USAGE = ("[Token", "usage:", "%]")
NUMBERS = tuple(str(number) for number in range(101))

READ, GREP, EDIT, RUN_TESTS, SUBMIT = "read", "grep", "edit", "run_tests", "submit"
TODO_ADD, TODO_DONE = "todo_add", "todo_done"
TOOLS = (READ, GREP, EDIT, RUN_TESTS, TODO_ADD, TODO_DONE, SUBMIT)

PYTHON = ("def", "return", "(", ")", ":", ",", "=", "==", "+", "-", "*", "#", "max", "min", "x", "assert", "from")
PYTHON_MORE = ("import", "exit", "raise", "open", "os", ".", "_exit", "if", "else", "<", ">")
"""Words with which a policy can also write code that cheats or fails."""

THINK = "#"
"""Begins a comment: in a file the specification of a function, in a turn the model's thinking before its call."""

SPECIFICATION = ("times", "plus", "minus", "larger", "smaller", "of", "and")
DONE, TODO = "done", "todo"
"""Begin the finished and the open items of a to-do list, and of a summary."""
NOTICES = (
    *("repair", "passed", "failed", "nothing", "found", "invalid", "action", "refused", "edited"),
    *("summaries", DONE, TODO),
)

FILES = ("orders.py", "billing.py", "stock.py", "shipping.py", "returns.py")
CONSTANTS_FILE, TESTS_FILE = "constants.txt", "tests.py"

FUNCTIONS = (
    *("adjust", "bill", "charge", "deposit", "estimate", "fee"),
    *("grant", "handling", "price", "refund", "toll", "value"),
)
CONSTANTS = (
    *("rate", "size", "limit", "margin", "bonus", "quota"),
    *("weight", "tax", "share", "floor", "count", "offset"),
)

VOCABULARY: tuple[str, ...] = (
    *SPECIAL,
    *USAGE,
    *NUMBERS,
    *TOOLS,
    *(*PYTHON, *PYTHON_MORE),
    *SPECIFICATION,
    *NOTICES,
    *(*FILES, CONSTANTS_FILE, TESTS_FILE),
    *FUNCTIONS,
    *CONSTANTS,
)
"""All tokens; the position of a token is its id."""

CODE_WORDS = frozenset((*NUMBERS, *PYTHON, *PYTHON_MORE, *FUNCTIONS, *CONSTANTS))
"""Words that a function's body may contain."""
NOTE_WORDS = frozenset(VOCABULARY) - frozenset(SPECIAL)
"""Words that a summary may contain."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set content = message['content'] or '' -%}"
    f"{{%- if message['role'] == 'assistant' -%}}{{{{ '{AGENT} ' + content + ' {END} ' }}}}"
    f"{{%- elif loop.first -%}}{{{{ '{TASK} ' + content + ' ' }}}}"
    f"{{%- elif content.startswith('error: ') -%}}{{{{ '{ERROR} ' + content[7:] + ' ' }}}}"
    f"{{%- elif content == 'summarize' -%}}{{{{ '{SUMMARIZE} ' }}}}"
    f"{{%- else -%}}{{{{ '{RESULT} ' + content + ' ' }}}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{AGENT}' }}}}{{%- endif -%}}"
)
"""Jinja template of a chat: first the task, then calls and their results in turn. ``error: …`` is an error, and
``summarize`` the request for a summary."""

_TOKENIZER = WordTokenizer(VOCABULARY, SPECIAL, pad=PAD, end=END, owner="coder", chat_template=CHAT_TEMPLATE)
TOKEN_IDS = _TOKENIZER.ids
END_ID = TOKEN_IDS[END]
PAD_ID = TOKEN_IDS[PAD]
encode_words, encode = _TOKENIZER.encode_words, _TOKENIZER.encode
tokenizer_json, tokenizer_config = _TOKENIZER.tokenizer_json, _TOKENIZER.tokenizer_config


def decode_words(token_ids: Iterable[int]) -> list[str]:
    """Return the words of ``token_ids``; ids outside the vocabulary appear as ``#id``: a policy may sample any."""
    return [VOCABULARY[item] if 0 <= item < len(VOCABULARY) else f"#{item}" for item in token_ids]


def decode(token_ids: Iterable[int]) -> str:
    """Return the text of ``token_ids``: the inverse of ``encode`` up to white space."""
    return " ".join(decode_words(token_ids))
