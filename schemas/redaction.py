"""Removes secrets from text before it is displayed.

Three methods cover one another's gaps. A value that is an address is parsed, so its user info may contain any character
(:func:`redacted_values`, and :func:`redacted_address` for a text that is one address). Secrets in settings and
environment are remembered and replaced wherever they occur literally (:func:`remember_secrets`). Prose of libraries and
servers is searched for the common forms of secrets; this is a heuristic that hides too much rather than too little.
Each method takes time linear in its text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

HIDDEN = "***"
"""Replacement for a secret."""

SHORTEST_REMEMBERED = 6
"""Length of the shortest secret that is replaced on its own: shorter ones would match parts of ordinary words."""

_LONGEST_WORD = 15
"""A secret that consists of digits, or of letters of one case, is replaced on its own only if it is longer than this:
``headrace`` as a password must not garble every path and module name. Together with its user (``user:headrace@``) it is
always replaced."""

_SECRET_NAME = (
    r"(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|"
    r"auth[_-]?token|access[_-]?token|session[_-]?token|security[_-]?token)s?"
)
_HEADER_NAME = r"(?:proxy-)?authorization|x-[\w-]{0,64}key"
_IS_SECRET_NAME = re.compile(
    rf"(?:\A|_|-|\.)(?:{_SECRET_NAME}|token|authorization|credentials?|pass|clickhouse-key)(?<!clickhouse_secrets)\Z|\Ax-[\w-]{{0,64}}key\Z",
    re.IGNORECASE,
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Between the words of a name such as ``clientSecret``."""
_IS_SECRET_PARAMETER = re.compile(rf"{_SECRET_NAME}|token|key|sig|auth|credential|pass", re.IGNORECASE)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://")
# A port and the character that may follow it in prose.
_PORT = re.compile(r"\d{1,5}(?:[/?#\s\"',;)\]}>\\]|[:.](?:\s|\Z)|\Z)")
_IPV6_HOST = re.compile(r"\[[0-9A-Fa-f:.%]{2,64}\](?::\d{1,5})?(?![^/?#\s\"',;:)}>\\])")
_USER = re.compile(r"[^\s/?#:@]{0,256}:")
_USER_ALONE = re.compile(r"[^\s/?#\"<>@]{0,1024}@")
_MORE_USER_INFO = re.compile(r"[^\s]*@")

# Quantifiers are bounded: otherwise a text of one repeated word would take quadratic time.
_USER_INFO_WITHOUT_SCHEME = re.compile(
    r"""(?<![^\s"'=,(\[])[^\s/:"'=,(\[]{1,64}:(?!\d{1,5}[,\s])[^\s@/"]{1,128}@(?:[^\s@/"',:]{0,64}@){0,8}(?=[\w\[])"""
)
_PARAMETER = re.compile(r"([?&;#]([\w.%+-]{1,128})=)([^&\s#\"<>]{1,4096})")
_ENDS_OF_PROSE = "'),.;]}"
_STRING = (
    r'(?:"(?:[^"\\]|\\.){0,4096}+"?'  # "a\"b"
    r"|'(?:[^'\\]|\\.){0,4096}+'?"
    r'|\\"(?:[^"\\]|\\(?:\\(?:\\")?|[^"\\])){0,4096}+(?:\\")?)'  # a string of JSON inside a string of JSON
)
_ASSIGNED = re.compile(
    rf"""((?:{_SECRET_NAME})\\?["']?[ \t]{{0,8}}[=:][ \t]{{0,8}})(?:{_STRING}|[^\s,;&"}}\]]{{1,4096}})""",
    re.IGNORECASE | re.DOTALL,
)
_HEADER = re.compile(
    rf"""(\b(?:{_HEADER_NAME})\\?["']?[ \t]{{0,8}}[=:][ \t]{{0,8}})"""
    rf"""(?:{_STRING}|(?:(?:bearer|basic|token|digest|apikey)[ \t]{{1,8}})?[^\s,;&"}}\]]{{1,4096}})""",
    re.IGNORECASE | re.DOTALL,
)
# "token=7 of 9" and "token: <tool_call>" are ordinary prose here: a secret token is long and has digits and letters.
_TOKEN = re.compile(
    r"""((?<![A-Za-z])token\\?["']?[ \t]{0,8}[=:][ \t]{0,8}\\?["']?)(?=[A-Za-z._~+/=-]{0,256}\d)"""
    r"""(?=[\d._~+/=-]{0,256}[A-Za-z])[A-Za-z0-9._~+/=-]{8,4096}""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)[ \t]{1,8}[A-Za-z0-9._~+/=-]{8,4096}", re.IGNORECASE)
SECRET_FORMS: Final = (
    (_ASSIGNED, ("passw", "passphrase", "pwd", "secret", "key", "token")),
    (_HEADER, ("authorization", "key")),
    (_TOKEN, ("token",)),
    (_BEARER, ("bearer", "basic")),
)
"""Forms of secrets in prose. Group 1 is what comes before the secret; a text that contains a form contains one of the
texts next to it, in upper or lower case."""

_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,32}PRIVATE KEY-----")

_remembered: set[str] = set()
_remembered_form: list[re.Pattern[str]] = []


def redacted(text: str) -> str:
    """Return ``text`` without its secrets: remembered secrets, user info and secret query parameters of URLs,
    passwords, keys, headers, tokens and private keys.

    Each secret is replaced by ``***``; the rest is unchanged, so an address still shows its host and path.
    """
    return _without_secret_forms(_without_remembered(text) if _remembered else text)


def _without_secret_forms(text: str) -> str:
    if "PRIVATE KEY-----" in text:
        text = _without_private_keys(text)
    if "://" in text:
        text = _without_user_info(text)
    if "@" in text and ":" in text:
        text = _USER_INFO_WITHOUT_SCHEME.sub(f"{HIDDEN}@", text)
    if "=" in text or ":" in text:
        text = _PARAMETER.sub(_parameter_hidden, text)
        text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
        text = _HEADER.sub(rf"\g<1>{HIDDEN}", text)
        text = _TOKEN.sub(rf"\g<1>{HIDDEN}", text)
    return _BEARER.sub(rf"\g<1> {HIDDEN}", text)


def redacted_address(url: str) -> str:
    """Return ``url``, a text that is exactly one address, without user info and secret query parameters.

    The address is parsed, so the whole password is hidden whatever characters it contains.
    """
    scheme, mark, rest = url.partition("://")
    at = _end_of_user_info(rest)
    if at:
        rest = f"{HIDDEN}@{rest[at:]}"
    place, question, query = rest.partition("?")
    if question:
        query, hash_, fragment = query.partition("#")
        query = "&".join(map(_pair_hidden, query.split("&")))
        rest = f"{place}?{query}{hash_}{fragment}"
    return f"{scheme}{mark}{rest}"


def redacted_values(value: Any) -> Any:
    """Return a value of JSON types with every text in it redacted; values under secret names are hidden completely.

    ``{"password": "x", "url": "http://u:p@h"}`` → ``{"password": "***", "url": "http://***@h"}``
    """
    if isinstance(value, str):
        return redacted(redacted_address(value) if _ADDRESS.match(value) else value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if is_secret_name(str(name)) and each not in (None, "") else redacted_values(each)
            for name, each in value.items()
        }
    return [redacted_values(each) for each in value] if isinstance(value, list | tuple) else value


def holds_secret(text: str) -> bool:
    """Return whether ``text`` contains a common form of a secret; remembered secrets are not considered."""
    return _without_secret_forms(text) != text


def is_secret_name(name: str) -> bool:
    """Return whether a setting or variable of this name holds a secret."""
    words = _WORDS.sub("_", name) if not name.islower() else name
    return bool(_IS_SECRET_NAME.search(words)) and name != "PWD"  # the shell's working directory


def remember_secrets(value: Any) -> None:
    """Make :func:`redacted` of this process replace the secrets in ``value``, which is a setting of JSON types or a
    mapping of settings: user info and secret parameters of addresses, and the values of secret names."""
    for secret in _secrets_in(value):
        for form in _forms(secret):
            _remembered.add(form)
    _remembered_form.clear()


def remember_secret(secret: str) -> None:
    """Make :func:`redacted` of this process replace ``secret``, unless it could be an ordinary word."""
    remember_secrets({"secret": secret})


def forget_secrets() -> None:
    """Forget all remembered secrets."""
    _remembered.clear()
    _remembered_form.clear()


def _without_remembered(text: str) -> str:
    if not _remembered_form:
        # Longest first: one secret may be a prefix of another.
        literals = sorted(_remembered, key=len, reverse=True)
        _remembered_form.append(re.compile("|".join(map(re.escape, literals))))
    return _remembered_form[0].sub(lambda found: f"{HIDDEN}@" if found[0].endswith("@") else HIDDEN, text)


def _secrets_in(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _secrets_in(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _secrets_in(each, name)
    elif isinstance(value, str) and value:
        if is_secret_name(name) and not _ADDRESS.match(value):
            yield value
        if value[:1] in "{[":
            try:
                yield from _secrets_in(json.loads(value))
            except (ValueError, RecursionError):
                return  # not JSON: the patterns for prose handle it
        elif _ADDRESS.match(value):
            yield from _secrets_of_address(value)


def _secrets_of_address(url: str) -> Iterator[str]:
    _, _, rest = url.partition("://")
    at = _end_of_user_info(rest)
    if at:
        user, colon, password = rest[: at - 1].partition(":")
        yield password if colon else user
        yield rest[:at]
    _, _, query = rest[at:].partition("?")
    for pair in query.partition("#")[0].split("&"):
        name, _, each = pair.partition("=")
        if _IS_SECRET_PARAMETER.search(name):
            yield each


def _forms(secret: str) -> Iterator[str]:
    """Return the forms in which ``secret`` may occur in a text: URL-decoded, escaped in a JSON or Python string."""
    forms = {secret, unquote(secret)}
    for _ in range(2):  # twice, as for an error's repr in a line of JSON
        forms |= {escaped for form in forms for escaped in _escaped(form)}
    return (form for form in forms if HIDDEN not in form and not _may_be_a_word(form))


def _escaped(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    yield repr(f"{text}\"'")[1:-4]  # as part of a text with both kinds of quotes


def _may_be_a_word(text: str) -> bool:
    of_one_kind = text.isdigit() or (text.isalpha() and (text.islower() or text.isupper() or text.istitle()))
    return len(text.strip()) < SHORTEST_REMEMBERED or (of_one_kind and len(text) <= _LONGEST_WORD)


def _end_of_user_info(rest: str) -> int:
    """Return the index of the host in ``rest``, the text after ``://``; 0 if there is no user info.

    An unescaped ``/``, ``?`` or ``#`` ends the authority, unless the text before it cannot be host and port: then the
    character is part of a password.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        return rest.rindex("@") + 1 if ":" in authority.partition("@")[0] else authority.rindex("@") + 1
    if ":" not in authority or "@" not in rest or _IPV6_HOST.match(rest):
        return 0
    port = authority.partition(":")[2]
    return 0 if port.isascii() and port.isdigit() and len(port) <= 5 else rest.rindex("@") + 1


def _without_user_info(text: str) -> str:
    """Remove the user info of each address in prose. Each text between two ``://`` is processed once."""
    first, *others = text.split("://")
    return "://".join([first, *map(_after_scheme, others)])


def _after_scheme(text: str) -> str:
    if "@" not in text or _IPV6_HOST.match(text):
        return text
    user = _USER.match(text)
    at = 0
    if user and not _PORT.match(text, user.end()):
        # A password: up to the first @ of the line, and up to later ones that no space separates from it.
        line_end = text.find("\n")
        at = text.find("@", user.end(), line_end if line_end >= 0 else len(text)) + 1
    elif alone := _USER_ALONE.match(text):
        at = alone.end() if not user else 0
    if not at:
        return text
    more = _MORE_USER_INFO.match(text, at)
    return f"{HIDDEN}@{text[more.end() if more else at :]}"


def _parameter_hidden(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    if not _IS_SECRET_PARAMETER.search(name):
        return str(found[0])
    return f"{before}{HIDDEN}{value[len(value.rstrip(_ENDS_OF_PROSE)) :]}"


def _pair_hidden(pair: str) -> str:
    name, mark, value = pair.partition("=")
    return f"{name}={HIDDEN}" if mark and value and _IS_SECRET_PARAMETER.search(name) else pair


def _without_private_keys(text: str) -> str:
    shown, place = [], 0
    while begin := _PEM_BEGIN.search(text, place):
        shown += [text[place : begin.start()], HIDDEN]
        end = _PEM_END.search(text, begin.end())
        place = end.end() if end else len(text)
    return "".join([*shown, text[place:]])
