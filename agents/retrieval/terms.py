"""Text → terms for BM25 and LSA, with the parts of identifiers.

terms_of("http.server.HTTPServer is slow") → ["http.server.httpserver", "http", "server", "http", "server", "slow"]
"""

import re

_NAME = re.compile(r"\w+(?:\.\w+)*")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_A-Za-z]+")
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by for from has have if in into is it its may not of on or that the then there this to "
        "was what when where which will with you",
    )
)
MAX_TERMS = 4_096
"""Most terms of one text. A longer text is cut off."""


def terms_of(text: str) -> list[str]:
    """Return the terms of ``text``, at most ``MAX_TERMS``: compound names, then their parts, without stop words."""
    terms: list[str] = []
    for match in _NAME.finditer(text):
        name = match[0]
        parts = [part.lower() for part in _PART.findall(name)]
        if parts != [name.lower()]:
            terms.append(name.lower())
        terms += [part for part in parts if part not in STOP_WORDS]
        if len(terms) >= MAX_TERMS:
            return terms[:MAX_TERMS]
    return terms
