"""What a page shows, as parameters of its URL: ``?run=r1&source=wide&by=tool``.

A page's address is a saved selection. Every parameter is a text; the empty text restricts nothing. All panels of a
page get all its parameters.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.deploy.dashboard.slices import SLICES

MAX_TEXT = 1000
"""Longest value of a parameter, in characters."""

MAX_ROWS = 1_000_000
"""Most trajectories in a file."""

MAX_SHOWN = 5_000
"""Most trajectories on a page."""


class SelectionError(ValueError):
    """A parameter of a URL has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a page's URL and of its panels' queries."""

    name: str
    """Its name in both."""
    about: str
    """What it selects."""
    pattern: str = ""
    """Regular expression of its values other than the empty text; without one any text is valid."""
    choices: tuple[str, ...] = ()
    """Its values, if only these are valid."""
    default: str = ""
    """Its value if the URL does not have it."""
    largest: int = 0
    """Its largest value, if it is a number with a bound."""
    names_run: bool = False
    """Whether it names a run, which must exist."""


RUN = Parameter("run", "the run; empty for all runs", names_run=True)
_VERSION = r"[0-9]{1,9}"
_NUMBER = r"-?[0-9]{1,12}(\.[0-9]{1,12})?"


def _slices(about: str, prefix: str = "") -> Iterator[Parameter]:
    """Yields a parameter for each kind of slice. ``prefix``: what its name begins with."""
    for each in SLICES:
        yield Parameter(f"{prefix}{each.name}", f"{about}: {each.title.lower()}", choices=each.choices)


SLICED: tuple[Parameter, ...] = (
    RUN,
    *_slices("restricts charts to a slice"),
    Parameter("by", "splits charts by a kind of slice", choices=tuple(each.name for each in SLICES)),
)
"""Parameters of pages whose charts are cut by slices."""

COMPARED: tuple[Parameter, ...] = (
    *(
        Parameter(f"{side}_{name}", about, pattern, names_run=name == "run")
        for side in "ab"
        for name, about, pattern in (
            ("run", f"run of side {side.upper()}", ""),
            ("from", f"oldest policy version of side {side.upper()}", _VERSION),
            ("to", f"newest policy version of side {side.upper()}", _VERSION),
        )
    ),
    Parameter("kind", "training rollouts or evaluations", choices=("train", "evaluate"), default="train"),
    *_slices("restricts both sides to a slice"),
    *_slices("restricts side A to another slice", "a_"),
    *_slices("restricts side B to another slice", "b_"),
)
"""The two sides of a comparison."""

SORTS = ("time", "reward", "advantage", "version", "tokens", "turns", "feedback")
"""Columns by which trajectories are sorted."""

EXPLORED: tuple[Parameter, ...] = (
    RUN,
    *_slices("only a slice"),
    Parameter("task", "only a task, by its id"),
    Parameter("group", "only a group, by its id"),
    Parameter("id", "only trajectories whose id begins so"),
    Parameter("purpose", "training rollouts or evaluations", choices=("train", "evaluate")),
    Parameter(
        "fate",
        "only a fate; undecided: neither trained nor rejected",
        choices=("trained", "rejected", "waiting", "frozen", "evaluation", "pending", "undecided"),
    ),
    Parameter("reason", "only a reason of rejections"),
    Parameter("step", "only the trajectories of a step", _VERSION),
    Parameter("from", "oldest policy version", _VERSION),
    Parameter("to", "newest policy version", _VERSION),
    Parameter("least", "smallest reward, as a share of the largest", _NUMBER),
    Parameter("most", "largest reward, as a share of the largest", _NUMBER),
    Parameter("tokens_from", "fewest sampled tokens", _VERSION),
    Parameter("tokens_to", "most sampled tokens", _VERSION),
    Parameter("sort", "the column by which rows are sorted", choices=SORTS, default="time"),
    Parameter("order", "falling or rising", choices=("falling", "rising"), default="falling"),
    Parameter("limit", "most rows", _VERSION, default="200", largest=MAX_SHOWN),
)
"""Filters and order of a table of trajectories."""


def selection(parameters: tuple[Parameter, ...], given: Mapping[str, str]) -> dict[str, str]:
    """Returns a value for each of ``parameters`` from the query ``given`` of a URL; other names in it are ignored.

    Raises :class:`SelectionError`, which names the parameter and its values.
    """
    return {each.name: _valid(each, given.get(each.name) or each.default) for each in parameters}


def _valid(parameter: Parameter, value: str) -> str:
    name = parameter.name
    if len(value) > MAX_TEXT:
        raise SelectionError(f"{name} may have at most {MAX_TEXT} characters.")
    if value and parameter.choices and value not in parameter.choices:
        raise SelectionError(f"{name} is {value!r}, but must be one of {', '.join(parameter.choices)}, or left out.")
    if value and parameter.pattern and not re.fullmatch(parameter.pattern, value):
        raise SelectionError(f"{name} is {value!r}, but must be a number ({parameter.about}), or left out.")
    if parameter.largest and int(value) > parameter.largest:
        raise SelectionError(f"{name} is {value}, but may be at most {parameter.largest}.")
    return value
