"""What a host passes by name to a method that records an event, checked at the call without running the host's code.

Besides the parameters that a method has, it accepts every field of its event. Fields of the host's own belong into
``extra``: a name that is neither, such as ``consents``, is a mistake, and what it was meant to say is unknown.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from headrace.agents.raised import type_name
from headrace.schemas.bounds import MAX_COUNT, MAX_NAME
from headrace.schemas.events import Purpose, Role, TrajectoryStarted
from headrace.schemas.model import Record

_SHOWN_CHARACTERS = 64
"""Longest name that a message shows; other texts than names of Python are not shown, either: they may be data."""

_OF_START = ("group_size", "harness_version", "role", "purpose", "sample_rate", "fork_turn")
"""Fields of a trajectory's start, besides identifiers, whose value may be invalid."""

_ROLE, _PURPOSE = Role.TRAINABLE, Purpose.TRAIN

_NUMBERS = frozenset({float, int})

_NO_OBJECT = frozenset({bool, int, float, str, bytes, list, tuple, set, frozenset})
"""Types whose values are sent as something other than a JSON object."""

_PLAIN = _NO_OBJECT | {dict, type(None), Role, Purpose}
"""Types that pydantic can check without running code of the host."""


class BadArgument(ValueError):
    """An argument is not one of the method's, or has a value that its field cannot have; the message names it and what
    is expected."""


def further_fields(model: type[Record], given: Mapping[str, Any], extra: Any) -> dict[str, Any]:
    """Return what is added to an event. ``given``: arguments by name that the method has no parameter for; ``extra``:
    the host's own fields, or ``None``. Raises :class:`BadArgument`."""
    check_names(given, model.model_fields)
    if extra is None:
        return dict(given)
    if type(extra) is not dict:
        raise BadArgument(f"extra is of type {type_name(type(extra))}: expected a dict")
    for name in extra:
        if type(name) is not str:
            raise BadArgument(f"extra has a key of type {type_name(type(name))}: expected a str")
        if name in model.model_fields:
            raise BadArgument(f"extra has {name}, which the event has itself: pass it as an argument")
    return {**given, **extra}


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`BadArgument` if a name of ``given`` is not in ``known``."""
    for name in given:
        if name not in known:
            is_name = len(name) <= _SHOWN_CHARACTERS and name.isidentifier()
            close = get_close_matches(name, [*known, "extra"], n=1) if is_name else []
            meant = f": did you mean {close[0]}?" if close else "."
            raise BadArgument(
                f"{name if is_name else 'a name that was passed'} is no argument here{meant} "
                "Fields of your own belong into extra={...}"
            )


def check_start(start: Mapping[str, Any]) -> None:
    """Raise :class:`BadArgument` if a trajectory's start has a value, other than an identifier, that the event cannot
    have. Objects of other types than Python's own are checked when the event is encoded."""
    if type(start["task"]) is not dict:
        check_object("task", start["task"])
    if _is_usual(start):
        return
    given = {name: _as_sent(start[name]) for name in _OF_START if name in start and type(start[name]) in _PLAIN}
    try:
        TrajectoryStarted.model_validate({"task_id": "t", "agent": "a", **given})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise BadArgument(f"{problem['loc'][0]}: {problem['msg']}") from None


def _is_usual(start: Mapping[str, Any]) -> bool:
    """Return whether all values of a start are certainly valid: a fast check for the host's thread."""
    size, rate, version = start.get("group_size"), start["sample_rate"], start.get("harness_version", "")
    role, purpose = start.get("role", _ROLE), start.get("purpose", _PURPOSE)
    return (
        (role is _ROLE or type(role) is Role)
        and (purpose is _PURPOSE or type(purpose) is Purpose)
        and (size is None or (type(size) is int and 0 < size <= MAX_COUNT))
        and (type(rate) in _NUMBERS and 0 < rate <= 1)
        and (type(version) is str and len(version) <= MAX_NAME)
        and "fork_turn" not in start
    )


def check_object(name: str, value: Any) -> None:
    """Raise :class:`BadArgument` if ``value`` cannot be a JSON object."""
    if type(value) in _NO_OBJECT or value is None:
        raise BadArgument(f"{name} is of type {type_name(type(value))}: expected a dict")


def _as_sent(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if type(value) is str else value
