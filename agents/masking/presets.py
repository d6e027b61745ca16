"""What the presets find: e-mail addresses, API keys and other credentials, payment cards.

    write to [email], the key is [api_key], paid with [payment_card]

They hide too much rather than too little. Each takes time linear in the text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.agents.masking.linear import LinearPattern, Span, linear, trusted, whole
from headrace.schemas.redaction import SECRET_FORMS, is_secret_name


class Preset(StrEnum):
    """Masks that come with the SDK. Each value is the kind under which spans are counted."""

    EMAIL = "email"
    """E-mail addresses."""
    API_KEY = "api_key"
    """API keys in the forms of common providers, JSON web tokens, private keys, ``Authorization`` headers, bearer
    tokens, values that are assigned to a password or key, parameters of URLs with such a name, and all values under one
    in an object."""
    PAYMENT_CARD = "payment_card"
    """Numbers of payment cards: prefix and length of a card network, and the right check digit (Luhn)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of text to hide, and how to find it."""

    kind: str
    """Name, also in the label that replaces the text."""
    pattern: LinearPattern
    """Pattern."""
    hints: tuple[str, ...] = ()
    """Texts of which a text with a match contains at least one; none: any text may have a match."""
    folds_case: bool = False
    """Whether ``hints`` are looked for without regard to case."""
    accept: Callable[[re.Match[str]], Span | None] = whole
    """Part of a match that is hidden; ``None``: none."""
    is_preset: bool = True
    """Whether it belongs to a preset, which is looked for in the :func:`~headrace.agents.masking.folding.folded` text.
    """

    def spans(self, text: str, spend: Callable[[int], None]) -> list[Span]:
        """Return the parts of ``text`` to hide; ``spend`` as in :meth:`LinearPattern.spans`."""
        if self.hints:
            searched = text.casefold() if self.folds_case else text
            if not any(hint in searched for hint in self.hints):
                return []
        return self.pattern.spans(text, spend, self.accept)


# Local part and domain: a possessive repeat ends at the first character that does not belong to it.
_DOMAIN: Final = r"[\w-]{1,63}+(?:\.[\w-]{1,63}+){1,8}+"
_EMAIL = linear(rf"[\w.!#$%&'*+/=?^`{{|}}~-]{{1,64}}+@{_DOMAIN}")
# The @ as it is in URLs, once or twice, in HTML, and in JSON.
_ENCODED_EMAIL = linear(rf"[\w.!$'*+^`{{|}}~-]{{1,64}}+(?:%(?:25){{0,2}}40|&#(?:64|x40);|\\u0040){_DOMAIN}")

_KEYS: Final = (
    ("sk-", r"sk-[\w-]{16,512}+"),  # OpenAI, Anthropic, OpenRouter, DeepSeek
    ("k_live_", r"[rsp]k_live_\w{10,256}+"),  # Stripe
    ("k_test_", r"[rsp]k_test_\w{10,256}+"),
    ("whsec_", r"whsec_[\w+/=]{16,256}+"),
    ("AKIA", r"AKIA[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"ASIA[0-9A-Z]{16}"),
    ("AIza", r"AIza[\w-]{30,64}+"),  # Google
    ("ya29.", r"ya29\.[\w-]{16,2048}+"),
    ("GOCSPX-", r"GOCSPX-[\w-]{16,64}+"),
    *((f"gh{each}_", rf"gh{each}_\w{{20,256}}+") for each in "pousr"),  # GitHub
    ("github_pat_", r"github_pat_\w{20,256}+"),
    *((f"gl{each}-", rf"gl{each}-[\w-]{{16,256}}+") for each in ("pat", "ptt", "dt", "rt", "cbt", "soat", "agent")),
    ("xox", r"xox[a-z]-[\w-]{10,256}+"),  # Slack
    ("xapp-", r"xapp-[\w-]{10,256}+"),
    ("hooks.slack.com/", r"hooks\.slack\.com/[\w/]{10,256}+"),
    ("hf_", r"hf_\w{20,128}+"),  # Hugging Face
    ("gsk_", r"gsk_\w{20,128}+"),  # Groq
    ("xai-", r"xai-[\w-]{20,128}+"),
    ("nvapi-", r"nvapi-[\w-]{20,128}+"),
    ("pplx-", r"pplx-\w{20,128}+"),
    ("r8_", r"r8_\w{20,128}+"),  # Replicate
    ("tvly-", r"tvly-[\w-]{16,128}+"),  # Tavily
    ("npm_", r"npm_\w{20,128}+"),
    ("pypi-", r"pypi-[\w-]{16,512}+"),
    ("dop_v1_", r"dop_v1_\w{32,128}+"),  # DigitalOcean
    ("dapi", r"dapi[0-9a-f]{32}"),  # Databricks
    ("shp", r"shp[a-z]{2}_[0-9a-f]{32}"),  # Shopify
    ("SG.", r"SG\.[\w-]{16,64}+\.[\w-]{16,128}+"),  # SendGrid
    ("SK", r"SK[0-9a-f]{32}"),  # Twilio
    ("key-", r"key-[0-9a-f]{32}"),  # Mailgun
    ("AccountKey=", r"AccountKey=[\w+/=]{32,256}+"),  # Azure
    ("eyJ", r"eyJ[\w-]{8,1024}+\.[\w.-]{8,8192}+"),  # a JSON web token
)
"""A text that each form contains, and the form."""

_PROVIDER_KEY = linear(rf"(?<![0-9A-Za-z])(?:{'|'.join(form for _, form in _KEYS)})", re.ASCII)
_PRIVATE_KEY = linear(
    r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----"
    r"[^-]{0,64}+(?:-{1,4}+[^-]{1,64}+){0,8}+[^-]{0,8192}+"  # first headers, such as DEK-Info: AES-128-CBC
    r"(?:-----END [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----)?"
)
_USER_INFO = linear(r"://[^\s/?#\"<>@]{1,1024}+@")
# A parameter up to its value, also as it is inside of another one, in HTML and in JSON. It begins with a set of
# characters, which the matcher searches fast, and must end like the name of a secret, as few do.
_PARAMETER = linear(
    r"[?&;#%\\](?:(?<=[?&;#])|(?<=%)(?:25){0,2}(?:3[Ff]|2[36])|(?<=\\)u0026)"
    r"([\w.~-]{1,128}+(?<=(?i:key|sig|ure|mac|uth|ken|ass|ord|pwd|swd|ase|ret|ial|ion)))(?:=|%(?:25){0,2}3[Dd])"
)
_PARAMETER_VALUE = re.compile(r"[^&\s#\"<>\\]{1,4096}")
_SIGNS = re.compile(r"(?:(?:\A|[._~-])(?i:key|sig|signature|hmac|auth)|[a-z](?:Key|Sig|Signature|Auth))\Z")
"""Names of parameters that sign an address or open it, beside those of :func:`is_secret_name`."""
_ENDS_OF_PROSE: Final = "'),.;]}"
_LABELS: Final = tuple(f"[{each}]" for each in Preset)
_REST = re.compile(r"[^\s,;&\"}\]]{0,4096}")

# The lookbehinds follow the digit, because the matcher searches a first character much faster than a lookbehind.
_CARD = linear(r"[2-6](?<![0-9][2-6])(?<![0-9]\.[2-6])(?:[ -]?+[0-9]){12,18}+")
_NETWORKS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|5[1-5][0-9]{14}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}"  # Diners Club
    r"|35[2-8][0-9]{13,16}"  # JCB
    r"|(?:5[06-8]|6[0-9])[0-9]{11,17}"  # Maestro, Discover, UnionPay
)
_SHORTEST_CARD: Final = 13
_DIGIT = re.compile(r"[0-9]")
_DIGITS: Final = frozenset("0123456789")
_WITHOUT_SEPARATORS = str.maketrans("", "", " -")
_DOUBLED = str.maketrans("0123456789", "0246813579")
"""Digits of a doubled digit, added."""


def rules_of(preset: Preset) -> tuple[Rule, ...]:
    """Return the rules of a preset."""
    match preset:
        case Preset.EMAIL:
            encoded = Rule(preset, _ENCODED_EMAIL, ("%40", "%2540", "%252540", "&#64;", "&#x40;", "\\u0040"))
            return (Rule(preset, _EMAIL, ("@",)), encoded)
        case Preset.API_KEY:
            assigned = (Rule(preset, trusted(form), hints, True, _after_name) for form, hints in SECRET_FORMS)
            return (
                Rule(preset, _PROVIDER_KEY, tuple(hint for hint, _ in _KEYS)),
                Rule(preset, _PRIVATE_KEY, ("PRIVATE KEY",)),
                Rule(preset, _USER_INFO, ("://",), accept=_user_info),
                Rule(preset, _PARAMETER, ("=", "3D", "3d"), accept=_parameter),
                *assigned,
            )
        case Preset.PAYMENT_CARD:
            return (Rule(preset, _CARD, accept=_card),)


def is_luhn(digits: str) -> bool:
    """Return whether the last one of ``digits`` is the check digit of the others."""
    return (sum(map(int, digits[-1::-2])) + sum(map(int, digits[-2::-2].translate(_DOUBLED)))) % 10 == 0


def _card(match: re.Match[str]) -> Span | None:
    """Return the longest card number that begins where the match does, and ends where a group of digits ends."""
    digits = match[0].translate(_WITHOUT_SEPARATORS)
    for length in range(len(digits), _SHORTEST_CARD - 1, -1):
        if _NETWORKS.fullmatch(digits, 0, length) and is_luhn(digits[:length]):
            ends = [found.end() for found in _DIGIT.finditer(match.string, match.start(), match.end())]
            if match.string[ends[length - 1] : ends[length - 1] + 1] not in _DIGITS:
                return match.start(), ends[length - 1]
    return None


def _after_name(match: re.Match[str]) -> Span | None:
    """Return what follows the name of a secret, without the space before it."""
    start = match.end(1)
    while start < match.end() and match.string[start].isspace():
        start += 1
    return _value(match.string, start, match.end())


def _value(text: str, start: int, end: int) -> Span | None:
    """Return the span of a secret value, with what follows a label in it: an earlier rule has hidden the rest, and the
    label ends with a character that ends values. ``None`` if nothing but a label is left of it."""
    while text.startswith(_LABELS, text.rfind("[", start, end)) and text[end : end + 1] == "]":
        end = _REST.match(text, end + 1).end()  # type: ignore[union-attr]  # it matches nothing, too
    return (start, end) if start < end and text[start:end] not in _LABELS else None


def _user_info(match: re.Match[str]) -> Span | None:
    return match.start() + len("://"), match.end() - 1


def _parameter(match: re.Match[str]) -> Span | None:
    """Return the value of a parameter with the name of a secret, without the end of a sentence."""
    if not (is_secret_name(match[1]) or _SIGNS.search(match[1])):
        return None
    value = _PARAMETER_VALUE.match(match.string, match.end())
    end = match.end() + len(value[0].rstrip(_ENDS_OF_PROSE)) if value else match.end()
    return _value(match.string, match.end(), end)
