"""The model's to-do list: names that it added, and which of them it finished.

    TodoList().added(("charge", "fee")).finished("charge").words   →  ("todo", "fee", "done", "charge")

It is part of the state that survives a summary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TodoList:
    """Items in the order in which they were added."""

    items: Mapping[str, bool] = field(default_factory=dict)
    """Item → whether it is finished."""

    def added(self, names: Sequence[str]) -> "TodoList":
        """Return the list with ``names`` open; a finished item that is added again is open again."""
        return TodoList({**self.items, **dict.fromkeys(names, False)})

    def finished(self, name: str) -> "TodoList":
        """Return the list with ``name`` finished. Raises ``KeyError`` if it is not on the list."""
        if name not in self.items:
            raise KeyError(f"{name!r} is not on the to-do list")
        return TodoList({**self.items, name: True})

    @property
    def open(self) -> tuple[str, ...]:
        """Items that are not finished."""
        return tuple(name for name, finished in self.items.items() if not finished)

    @property
    def words(self) -> tuple[str, ...]:
        """The list as the state states it: open items, then finished ones; empty without items."""
        done = tuple(name for name, finished in self.items.items() if finished)
        return (*(("todo", *self.open) if self.open else ()), *(("done", *done) if done else ()))
