"""Small builders of observations and windows."""

from typing import Any

from headrace.schemas.records.watch import Lane, Observation
from headrace.streams.watch.judgement import Concluded, WatchRules, conclude
from headrace.streams.watch.key_state import KeyState
from headrace.streams.watch.window import Key, Row

RULES = WatchRules({})
ATTEMPTS = Key(Lane.ATTEMPT, "r", "a", "s")
REWARDS = Key(Lane.REWARD, "r", "a", "s", "x@1")


def observed(id: str, *, of: Lane = Lane.ATTEMPT, version: int | None = 1, **values: float) -> Observation:
    """An observation of run r, agent a, source s."""
    return Observation(
        of=of,
        trajectory_id=id,
        run="r",
        agent="a",
        task_source="s",
        spec="x@1" if of is Lane.REWARD else "",
        version=version,
        values=values,
    )


def rows(count: int, version: int = 1, **columns: Any) -> list[Row]:
    """``count`` rows; a column is a value for all, or a list with one for each."""
    return [
        Row(
            f"v{version}-{number}",
            version,
            1000 * version + number,
            {name: float(each[number] if isinstance(each, list) else each) for name, each in columns.items()},
            source_labels(number),
            "s",
            "t",
        )
        for number in range(count)
    ]


def source_labels(number: int) -> tuple[str, ...]:
    """Two trigrams that alternate."""
    return ("^>search>answer",) if number % 2 else ("^>read>answer",)


def some(count: int, of: int) -> list[float]:
    """``count`` ones among ``of`` values, spread evenly."""
    return [float((number + 1) * count // of > number * count // of) for number in range(of)]


def after(windows: list[list[Row]], key: Key = ATTEMPTS, rules: WatchRules = RULES) -> list[Concluded]:
    """What follows from ``windows``, one after the other."""
    state, found = KeyState(key), []
    for window in windows:
        found.append(conclude(state, window, rules))
        state = found[-1].state
    return found
