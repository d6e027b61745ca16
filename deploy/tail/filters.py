"""Which records `headrace tail` shows: by type, trajectory, run, agent, or the value of any field."""

import json
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.deploy.tail.line import is_id
from headrace.deploy.tail.record import Seen, label_of, short_type, trajectories_of
from headrace.schemas.topics import EVENTS

MAX_REMEMBERED = 100_000
"""Trajectories whose run and agent are remembered: of an event only the start says them."""

_CONDITION = re.compile(r"([A-Za-z_][\w.-]*)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A field and what it must be: ``reason=stale``, ``total>0.5``, ``started.agent=search``, ``defects=no_end``."""

    path: tuple[str, ...]
    """Names, outermost first; a list stands for each of its items."""
    sign: str
    """``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``."""
    value: str
    """What it is compared with: as a number where both are numbers, else as text."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """``FIELD=VALUE`` and the like; raises ``ValueError`` that says what is expected."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not FIELD=VALUE (or !=, <, <=, >, >=), as in total>0.5 or started.agent=x")
        return cls(tuple(match[1].split(".")), match[2], match[3])

    def holds(self, payload: Any) -> bool:
        """Whether any value at the path in ``payload`` (JSON) compares so; for ``!=``, whether all do."""
        results = [_compare(self.sign, found, self.value) for found in _values(payload, self.path)]
        return all(results) if self.sign == "!=" else any(results)


@dataclass(slots=True)
class Filters:
    """What must hold of a record, all of it."""

    types: tuple[str, ...] = ()
    """One of these types, in full or short: ``tool.called``."""
    trajectory: str | None = None
    """About this trajectory; its id, or as a line shortens it."""
    run: str | None = None
    """Of this run."""
    agent: str | None = None
    """Of this agent."""
    conditions: tuple[Condition, ...] = ()
    """Of fields."""
    _starts: OrderedDict[str, bool] = field(default_factory=OrderedDict, repr=False)

    @property
    def are_set(self) -> bool:
        """Whether anything is left out at all."""
        return bool(self.types or self.trajectory or self.run or self.agent or self.conditions)

    def keep(self, seen: Seen) -> bool:
        """Whether to show ``seen``. Events of a run or an agent are known by their trajectory's start, seen before."""
        labelled = self._is_labelled(seen)
        return (
            labelled
            and (not self.types or seen.type in self.types or short_type(seen.type) in self.types)
            and (self.trajectory is None or any(is_id(each, self.trajectory) for each in trajectories_of(seen)))
            and self._conditions_hold(seen)
        )

    def _is_labelled(self, seen: Seen) -> bool:
        wanted = {name: value for name, value in (("run", self.run), ("agent", self.agent)) if value is not None}
        if not wanted:
            return True
        said = {name: label_of(seen, name) for name in wanted}
        labelled = said == wanted
        if seen.raw.topic != EVENTS.name:
            return labelled
        if any(value is not None for value in said.values()):
            self._starts[seen.subject] = labelled
            while len(self._starts) > MAX_REMEMBERED:
                self._starts.popitem(last=False)
        return self._starts.get(seen.subject, False)

    def _conditions_hold(self, seen: Seen) -> bool:
        if not self.conditions:
            return True
        if seen.payload is None:
            return False
        payload = seen.payload.model_dump(mode="json")
        return all(condition.holds(payload) for condition in self.conditions)


def _values(node: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _values(item, path)
    elif not path:
        yield node
    elif isinstance(node, dict):
        # A name may hold dots itself: names of tools and of reward components are free.
        for length in range(1, len(path) + 1):
            name = ".".join(path[:length])
            if name in node:
                yield from _values(node[name], path[length:])


def _compare(sign: str, found: Any, wanted: str) -> bool:
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return _OPERATORS[sign](found, float(wanted))
        except ValueError:
            return sign == "!="
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _OPERATORS[sign](text, wanted)
