"""An exception is described by its type and its arguments; the host's code for that does not run."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.agents.encoding import Note, encode_note
from headrace.agents.raised import MAX_CHARACTERS, Raised
from headrace.agents.sdk import Headrace


class Query:
    """A query of an object-relational mapper, which runs when it is printed."""

    def __repr__(self) -> str:
        raise AssertionError("the host's code ran")

    __str__ = __repr__


class Bad(Exception):
    """An exception whose attributes and methods raise another one."""

    def __str__(self) -> str:
        raise SystemExit("the host's code ran")

    __repr__ = __str__

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise SystemExit("the host's code ran")


class Meta(type):
    """A metaclass whose name raises."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("the host's code ran")


class Nameless(Exception, metaclass=Meta):
    """An exception of a class whose name raises."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError: no such field": lambda: ValueError("no such field"),
    "ValueError": ValueError,
    "ValueError: a, 1": lambda: ValueError("a", 1),
    "KeyError: k": lambda: KeyError("k"),
    "FileNotFoundError: [Errno 2] No such file: a/b": lambda: FileNotFoundError(2, "No such file", "a/b"),
    'LookupError: {"unserialisable":"Query"}': lambda: LookupError(Query()),
    "TypeError: <list>": lambda: TypeError(list(range(800_000))),
    "ValueError: <list>": lambda: ValueError(["x" * 1_000_000]),
    "ValueError: " + "x" * (MAX_CHARACTERS - 12): lambda: ValueError("x" * 1_000_000),
    "Bad: told": lambda: Bad("told"),
    "Nameless: told": lambda: Nameless("told"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_host_s_code_does_not_run_and_the_exception_propagates(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace, notes = Headrace("127.0.0.1:9", source="test", flush_deadline_s=0), list[Note]()
    monkeypatch.setattr(headrace._sender, "put", lambda fields: notes.append(Note(*fields)))
    error = ERRORS[text]()
    caught: BaseException | None = None
    try:
        with headrace.trajectory(task_id="q", agent="a") as t, t.tool("search"):
            raise error
    except BaseException as raised:  # noqa: BLE001 - must not be the SystemExit of the name
        caught = raised
    assert (caught is error) is True
    returned, ended = (json.loads(encode_note(note, "test", 1_000_000).message.value) for note in notes[2:])
    assert returned["result"] == {"error": text.partition(":")[0], "message": text}
    assert (ended["status"], ended["error"]) == ("failed", text)
    headrace.close()


def test_neither_the_exception_nor_its_frames_are_kept() -> None:
    error = ValueError("x")
    assert not any(part is error for part in Raised.of(error))
