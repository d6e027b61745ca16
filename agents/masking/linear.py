r"""Regular expressions that take time linear in the text, whatever the text is.

    linear(r"ORD-[0-9]{8}")      accepted
    linear(r"(a{1,9}){1,9}b")    ValueError: … a repeat inside another one …

Python's matcher backtracks, and holds the interpreter while it does: one bad pattern would stop the host. So a pattern
must bound the length of its matches, and the number of ways in which it can try to match at one place. A text is
searched piece by piece, so other threads run in between and a limit of time is noticed.
"""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

MAX_WIDTH: Final = 8_192 + 4_096
"""Longest match, in characters, with what lookaheads may read."""

MAX_WAYS: Final = 100_000
"""Most ways to match at one place."""

_LOOKAHEAD: Final = 1_024
"""Most characters that lookaheads of a trusted pattern read."""

PIECE: Final = 1_024
"""Least number of characters whose matches are searched in one step. It is twice the width of a pattern if that is
more, because a step also reads as many characters after its piece."""

Span = tuple[int, int]
"""Start and end of a part of a text."""

# The parser of `re` has no public name; without it no pattern could be checked, so it is imported when this module is.
_parser: Final[Any] = importlib.import_module("re._parser")


@dataclass(frozen=True, slots=True)
class _Size:
    """What a part of a pattern may take."""

    width: int
    """Most characters that it reads."""
    ways: int
    """Most ways in which it matches at one place, which a match that fails later tries."""


def whole(match: re.Match[str]) -> Span | None:
    """Accept a match as it is."""
    return match.span()


@dataclass(frozen=True, slots=True)
class LinearPattern:
    """A checked pattern; :func:`linear` makes it."""

    pattern: re.Pattern[str]
    width: int
    """Most characters that it reads from the start of a match."""

    def spans(
        self, text: str, spend: Callable[[int], None], accept: Callable[[re.Match[str]], Span | None] = whole
    ) -> list[Span]:
        """Return the matches in ``text``, from left to right, none of which overlap.

        ``spend`` is called with the number of characters searched; it may raise, which ends the search. ``accept``
        returns the part of a match that counts, or ``None``; then the search continues one character later.
        """
        found: list[Span] = []
        at, length, piece = 0, len(text), max(PIECE, 2 * self.width)
        while at < length:
            end = min(at + piece, length)
            match = self.pattern.search(text, at, min(end + self.width, length))
            if match is None or match.start() >= end:
                spend(end - at)
                at = end
                continue
            spend(match.end() - at)
            part = accept(match)
            if part is None:
                at = match.start() + 1
            else:
                found.append(part)
                at = max(match.end() if accept is whole else part[1], match.start() + 1)
        return found


def linear(pattern: str | re.Pattern[str], flags: int = 0) -> LinearPattern:
    """Return ``pattern`` once it is known to take linear time.

    Raises ``ValueError`` for a pattern without a bound, with a back reference, with a repeat of what can match in
    several ways, with more than ``MAX_WAYS`` ways or longer than ``MAX_WIDTH``, for one that matches an empty text,
    and for a text that is no pattern.
    """
    try:
        compiled = re.compile(pattern, flags)
    except (re.error, TypeError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression of text: {error}") from error
    if not isinstance(compiled.pattern, str):
        raise ValueError(f"{pattern!r} is a pattern of bytes: expected one of text")
    parsed = _parser.parse(compiled.pattern, compiled.flags)
    try:
        size = _sequence(parsed)
    except ValueError as error:
        raise ValueError(f"the pattern {compiled.pattern!r} {error}") from None
    if not parsed.getwidth()[0]:
        raise ValueError(f"the pattern {compiled.pattern!r} matches an empty text")
    return LinearPattern(compiled, size.width + 1)


def trusted(pattern: re.Pattern[str]) -> LinearPattern:
    """Return a pattern that is known to take linear time for reasons that :func:`linear` does not see."""
    return LinearPattern(pattern, _parser.parse(pattern.pattern, pattern.flags).getwidth()[1] + _LOOKAHEAD)


def _sequence(items: Iterable[tuple[Any, Any]]) -> _Size:
    width, ways = 0, 1
    for operation, value in items:
        size = _item(str(operation), value)
        width, ways = width + size.width, ways * size.ways
        _check(width, ways)
    return _Size(width, ways)


def _item(operation: str, value: Any) -> _Size:
    match operation:
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            return _Size(1, 1)
        case "AT":
            return _Size(0, 1)
        case "SUBPATTERN":
            return _sequence(value[3])
        case "BRANCH":
            sizes = [_sequence(each) for each in value[1]]
            return _Size(max(size.width for size in sizes), sum(size.ways for size in sizes))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, body = value
            return _repeat(int(least), int(most), _sequence(body), is_possessive=operation == "POSSESSIVE_REPEAT")
        case "ATOMIC_GROUP":
            return _Size(_sequence(value).width, 1)
        case "ASSERT" | "ASSERT_NOT":
            return _Size(_sequence(value[1]).width, 1)
        case _:
            raise ValueError("refers back to a group, whose cost has no bound: write it without")


def _repeat(least: int, most: int, body: _Size, *, is_possessive: bool) -> _Size:
    if most * max(1, body.width) > MAX_WIDTH:
        raise ValueError(f"has a repeat without a bound, or longer than {MAX_WIDTH:,} characters: write {{1,64}} for +")
    if is_possessive:
        return _Size(most * body.width, 1)
    if most == 1:
        return _Size(body.width, body.ways + (least == 0))
    if body.ways > 1 and not (least == most and body.ways**most <= MAX_WAYS):
        raise ValueError(
            "has a repeat inside another one, or alternatives inside a repeat, which may take time exponential in the "
            "text: make it possessive ({1,9}+)"
        )
    return _Size(most * body.width, max(most - least + 1, body.ways**most))


def _check(width: int, ways: int) -> None:
    if width > MAX_WIDTH:
        raise ValueError(f"may match more than {MAX_WIDTH:,} characters")
    if ways > MAX_WAYS:
        raise ValueError(
            f"has more than {MAX_WAYS:,} ways to match at one place: make repeats possessive ({{1,64}}+), or shorter"
        )
