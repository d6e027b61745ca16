"""Lines of a transcript for a terminal: with colours, and without control characters."""

import click

from headrace.deploy.transcript.page import Colouring, Fragment, Kind, Line
from headrace.schemas.safe_text import printable

_VERSION_COLOURS = ("green", "yellow", "cyan", "magenta", "bright_blue", "bright_red")
"""Colours of policy versions, repeated."""
_LOGPROB_COLOURS = {-0.1: "green", -1.0: "yellow", -3.0: "bright_red"}
"""Colours of the bands of log-probabilities; below the last one: red."""
_KIND_COLOURS = {Kind.EVENT: "blue", Kind.CONTEXT: "bright_black"}


def styled(line: Line, colouring: Colouring) -> str:
    """Returns ``line`` with its colours; click removes them if the output is not a terminal."""
    return "".join(_styled(fragment, colouring) for fragment in line)


def _styled(fragment: Fragment, colouring: Colouring) -> str:
    text = printable(fragment.text)
    if fragment.kind is Kind.HEADING:
        return click.style(text, bold=True)
    if fragment.kind is not Kind.SAMPLED:
        return click.style(text, fg=_KIND_COLOURS[fragment.kind])
    return click.style(text, fg=sampled_colour(fragment.value, colouring))


def sampled_colour(value: float | None, colouring: Colouring) -> str | None:
    """Returns the colour of sampled text whose colour stands for ``value``; ``None``: the terminal's own."""
    if colouring is Colouring.ADVANTAGE:
        return "green" if value and value > 0 else "bright_red" if value and value < 0 else None
    if value is None and colouring is Colouring.LOGPROB:
        return None
    if value is None or colouring is Colouring.NONE:
        return "green"
    if colouring is Colouring.VERSION:
        return _VERSION_COLOURS[int(value) % len(_VERSION_COLOURS)]
    return _LOGPROB_COLOURS.get(value, "red")
