"""The filters of `headrace tail`: by type, trajectory, run, agent, or the value of any field."""

import json
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.deploy.tail.record import DecodedRecord, label_of, short_type, trajectories_of
from headrace.deploy.tail.shortened_ids import is_id
from headrace.schemas.topics import EVENTS

MAX_REMEMBERED = 100_000
"""Most trajectories whose run and agent are remembered: only a trajectory's first event has them."""

_CONDITION = re.compile(r"([A-Za-z_][\w.:/-]*)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
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
    """A comparison of a field: ``reason=stale``, ``total>0.5``, ``started.agent=search``, ``defects=no_end``."""

    path: tuple[str, ...]
    """Field names, outermost first; a path into a list means each of its items."""
    sign: str
    """``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``."""
    value: str
    """The value to compare with: as a number if both are numbers, otherwise as text."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Parse ``FIELD=VALUE`` or another comparison; raises ``ValueError`` that names the expected form."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not FIELD=VALUE (or !=, <, <=, >, >=), as in total>0.5 or started.agent=x")
        return cls(tuple(match[1].split(".")), match[2], match[3])

    def holds(self, payload: Any) -> bool:
        """Whether the comparison holds for any value at the path in ``payload`` (JSON); for ``!=``, for all values."""
        results = [_compare(self.sign, found, self.value) for found in _values(payload, self.path)]
        return all(results) if self.sign == "!=" else any(results)


@dataclass(slots=True)
class Filters:
    """Filters that a record must pass, all of them; an unset filter passes every record."""

    types: tuple[str, ...] = ()
    """Keep these types; full or short names: ``tool.called``."""
    trajectory: str | None = None
    """Keep records about this trajectory: its id, in full or shortened."""
    run: str | None = None
    """Keep this run."""
    agent: str | None = None
    """Keep this agent."""
    conditions: tuple[Condition, ...] = ()
    """Conditions on fields."""
    _starts: OrderedDict[str, bool] = field(default_factory=OrderedDict, repr=False)

    @property
    def are_set(self) -> bool:
        """Whether any filter is set."""
        return bool(self.types or self.trajectory or self.run or self.agent or self.conditions)

    def keep(self, record: DecodedRecord) -> bool:
        """Whether to show ``record``.

        The run and the agent of an event are those of its trajectory's first event, if that was passed in before.
        """
        labelled = self._is_labelled(record)
        return (
            labelled
            and (not self.types or record.type in self.types or short_type(record.type) in self.types)
            and (self.trajectory is None or any(is_id(each, self.trajectory) for each in trajectories_of(record)))
            and self._conditions_hold(record)
        )

    def _is_labelled(self, record: DecodedRecord) -> bool:
        wanted = {name: value for name, value in (("run", self.run), ("agent", self.agent)) if value is not None}
        if not wanted:
            return True
        labels = {name: label_of(record, name) for name in wanted}
        labelled = labels == wanted
        if record.raw.topic != EVENTS.name:
            return labelled
        if any(value is not None for value in labels.values()):
            self._starts[record.subject] = labelled
            while len(self._starts) > MAX_REMEMBERED:
                self._starts.popitem(last=False)
        return self._starts.get(record.subject, False)

    def _conditions_hold(self, record: DecodedRecord) -> bool:
        if not self.conditions:
            return True
        if record.payload is None:
            return False
        payload = record.payload.model_dump(mode="json")
        return all(condition.holds(payload) for condition in self.conditions)


def _values(node: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _values(item, path)
    elif not path:
        yield node
    elif isinstance(node, dict):
        # Names of tools and reward components are free and may contain dots.
        for length in range(1, len(path) + 1):
            name = ".".join(path[:length])
            if name in node:
                yield from _values(node[name], path[length:])


def _compare(sign: str, found: Any, wanted: str) -> bool:
    if isinstance(found, int | float) and not isinstance(found, bool):
        number = _number(wanted)
        return sign == "!=" if number is None else bool(_OPERATORS[sign](found, number))
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _OPERATORS[sign](text, wanted)


def _number(text: str) -> int | float | None:
    """Returns ``text`` as a number: a whole one exactly, because a float has 53 bits; ``None`` if it is none."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None
