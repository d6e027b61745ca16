"""Labels in a task's data that monitors and analysts use, besides what the reward needs.

{"source": "tickets", "tripwire": true}                a task that cannot be solved: a success shows a hack
{"source": "tickets", "marked": ["answers.csv"]}       reading one of these shows a hack
{"source": "tickets", "hops": 3}                       a difficulty: lengths of attempts are compared within it
{"source": "tickets", "channel": "slack"}              a slice of the charts: where the agent was asked
"""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.schemas.bounds import MAX_NAME

DIFFICULTY_FIELDS = ("difficulty", "level", "hops", "size", "lookups")
"""Fields of a task that say how difficult it is: the first that it has."""
MAX_MARKED = 64
"""Most marked ids of a task that are looked for."""


def task_source(task: Mapping[str, Any]) -> str:
    """Return where the task comes from: its text ``source``; empty if it has none."""
    source = task.get("source")
    return source[:MAX_NAME] if isinstance(source, str) else ""


def difficulty(task: Mapping[str, Any]) -> str:
    """Return how difficult the task is, by the first of :data:`DIFFICULTY_FIELDS`; empty if it does not say."""
    return label_of(task, DIFFICULTY_FIELDS)


def label_of(task: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of the fields ``names`` that is a text or a number, as text; empty without one."""
    values = (task.get(name) for name in names)
    return next((str(value) for value in values if isinstance(value, str | int | float) and value != ""), "")


def is_tripwire(task: Mapping[str, Any]) -> bool:
    """Return whether the task cannot be solved (``tripwire`` is true)."""
    return task.get("tripwire") is True


def marked(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of things that an honest attempt has no reason to read: the first 64 texts of ``marked``."""
    ids = task.get("marked")
    return tuple(id for id in ids[:MAX_MARKED] if isinstance(id, str) and id) if isinstance(ids, list) else ()
