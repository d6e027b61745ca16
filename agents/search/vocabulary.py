"""The search agent's vocabulary: one token per word, in a fixed order, so that text and token ids are equivalent.

    encode("search_corpus ada employer <end>") → [24, 57, 41, 1]

The shipped base model depends on the order: append words, never insert them. ``tokenizer_json`` renders the same table
for Hugging Face and vLLM; a test compares the two. ``CHAT_TEMPLATE`` makes a context of the messages of a chat:

    user       what is the seat of the employer of ada ? …     <task> what is … <agent>
    assistant  search_corpus ada employer                      search_corpus ada employer <end>
    user       c17 d03 employer of ada is acme …               <result> c17 d03 … <agent>
"""

from headrace.agents.word_tokenizer import WordTokenizer

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

_TOKENIZER = WordTokenizer(
    VOCABULARY,
    (PAD, END, TASK, RESULT, ERROR, AGENT),
    pad=PAD,
    end=END,
    owner="search agent",
    chat_template=CHAT_TEMPLATE,
)
TOKEN_IDS = _TOKENIZER.ids
END_ID = TOKEN_IDS[END]
PAD_ID = TOKEN_IDS[PAD]
encode_words, encode = _TOKENIZER.encode_words, _TOKENIZER.encode
decode_words, decode = _TOKENIZER.decode_words, _TOKENIZER.decode
tokenizer_json, tokenizer_config = _TOKENIZER.tokenizer_json, _TOKENIZER.tokenizer_config
