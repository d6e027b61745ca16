"""Text that may be shown: secrets taken out, control characters escaped, markup of matplotlib escaped.

Ids, names and messages come from whoever may write to the log, and addresses from settings that may hold passwords. So
what is shown goes through one of these on its way out: to a terminal :func:`printable` or :func:`printable_json`, to a
log, a page, a file or an error :func:`redacted`, into a picture :func:`plain_text`. Each takes time linear in its text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
"""What stands in the place of a secret."""

_SECRET_NAME = (
    r"(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"auth[_-]?token|access[_-]?token|session[_-]?token|security[_-]?token)s?"
)
# Quantifiers have bounds: without them a text of one repeated word would take quadratic time.
_USER_INFO = re.compile(
    r"""(?<=://)(?:
    [^\s/?#"'<>]{0,1024}@                                               # user:password@host
    | [^\s/?#:"'<>]{0,256}:(?!\d{1,5}(?:[/?#\s"',;)]|\Z))[^\s"'<>]{0,1024}@  # a password with an unescaped / ? or #
    )""",
    re.VERBOSE,
)
_USER_INFO_WITHOUT_SCHEME = re.compile(r"""(?:(?<=[\s"'=,(\[])|\A)[^\s/@:"'=,(\[]{1,128}:[^\s@/"']{1,256}@(?=[\w\[])""")
_QUERY = re.compile(
    rf"([?&;][\w.%-]{{0,64}}?(?:{_SECRET_NAME}|token|key|sig|signature|auth|credential)[\w.%-]{{0,64}}=)[^&\s#\"'<>;]{{1,4096}}",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    rf"""({_SECRET_NAME}\\?["']?[ \t]{{0,8}}[=:][ \t]{{0,8}})                        # a name, and = or :
    (\\?"[^"\\]{{0,4096}}\\?" | '[^']{{0,4096}}' | [^\s,;&"'}}\]]{{1,4096}})""",
    re.VERBOSE | re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)[ \t]{1,8}[A-Za-z0-9._~+/=-]{8,4096}", re.IGNORECASE)
_IS_SECRET_NAME = re.compile(rf"(?:\A|_|-|\.)(?:{_SECRET_NAME}|token)\Z", re.IGNORECASE)

_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def redacted(text: str) -> str:
    """``text`` without its secrets: user info and secret query parameters of URLs, passwords, keys and bearer tokens.

    What is taken out is shown as ``***``; the rest stays as it is, so an address still says where it leads.
    """
    if "@" in text:
        text = _USER_INFO.sub(f"{HIDDEN}@", text)
        text = _USER_INFO_WITHOUT_SCHEME.sub(f"{HIDDEN}@", text)
    if "=" in text or ":" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
        text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
    return _BEARER.sub(rf"\g<1> {HIDDEN}", text)


def redacted_values(value: Any) -> Any:
    """A value of JSON's types with every text in it redacted, and hidden whole where its name says that it is secret.

    ``{"password": "x", "url": "http://u:p@h"}`` → ``{"password": "***", "url": "http://***@h"}``
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _IS_SECRET_NAME.search(str(name)) and each not in (None, "") else redacted_values(each)
            for name, each in value.items()
        }
    return [redacted_values(each) for each in value] if isinstance(value, list | tuple) else value


def holds_secret(text: str) -> bool:
    """Whether :func:`redacted` would take anything out of ``text``."""
    return redacted(text) != text


def printable(text: str) -> str:
    """``text`` in one line that moves no terminal's cursor, colours or reading direction.

    Control characters (C0, C1, ESC), line ends, bidirectional overrides and other invisible characters are shown as
    escapes: ``\\x1b``, ``\\n``, ``\\u202e``.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """:func:`printable` for each line of a text whose line ends are meant."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON, for programs and terminals alike: what is not printable is escaped as JSON has it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(each if each == "\n" or _is_shown(each) else json.dumps(each)[1:-1] for each in text)


def plain_text(text: str) -> str:
    """``text`` for a label of matplotlib, drawn as it is: a dollar sign begins no formula, control characters are
    escaped, so that an SVG holds none."""
    return printable(text).replace("$", r"\$")


def _is_shown(character: str) -> bool:
    # Spaces of other scripts (U+3000) are not "printable" for Python, and do no harm.
    return character.isprintable() or (character.isspace() and character > "\xa0" and character not in "\u2028\u2029")


def _shown(character: str) -> str:
    if _is_shown(character):
        return character
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
