"""An exception of the host, recorded on the host's thread and described on the sender's, without running host code.

    ValueError("no such field")  →  "ValueError: no such field"
    LookupError(<QuerySet>)      →  'LookupError: {"unserialisable":"QuerySet"}'

``str(error)`` runs the exception's ``__str__`` and the ``__repr__`` of its arguments, which may run queries, produce
megabytes of text or raise. So only its type and references to its arguments are recorded, and the arguments are written
like any other value (``json_form``).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self, cast

from headrace.agents.json_form import JsonForm, TooLarge

MAX_CHARACTERS: Final = 1_000
"""Longest text of an exception."""

type_name = cast(Callable[[type], str], type.__dict__["__name__"].__get__)
"""Returns the name of a class, whatever its metaclass defines."""

_arguments = cast(Callable[[BaseException], tuple[Any, ...]], BaseException.__dict__["args"].__get__)
_file = cast(Callable[[OSError], Any], OSError.__dict__["filename"].__get__)


class Raised(NamedTuple):
    """The recorded parts of an exception, without its traceback, which would keep the host's frames alive."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    file: Any
    """File of an ``OSError``."""
    is_result: bool
    """Whether it replaces a tool's result, which is an object, or a text."""

    @classmethod
    def of(cls, error: BaseException, *, is_result: bool = False) -> Self:
        """Record ``error``, in constant time."""
        kind = type(error)
        return cls(
            kind, _arguments(error), _file(cast(OSError, error)) if issubclass(kind, OSError) else None, is_result
        )

    def plain(self) -> dict[str, str] | str:
        """Return a text of up to ``MAX_CHARACTERS``, or ``{"error": TYPE, "message": TEXT}`` for a tool's result."""
        name, message = type_name(self.kind)[:MAX_CHARACTERS], self._message()
        text = (f"{name}: {message}" if message else name)[:MAX_CHARACTERS]
        return {"error": name, "message": text} if self.is_result else text

    def _message(self) -> str:
        arguments = self.arguments
        if issubclass(self.kind, OSError) and len(arguments) == 2 and type(arguments[0]) is int:
            about = "" if self.file is None else f": {_shown(self.file)}"
            return f"[Errno {_shown(arguments[0])}] {_shown(arguments[1])}{about}"
        return ", ".join(_shown(argument) for argument in arguments[:MAX_CHARACTERS])


def _shown(value: Any) -> str:
    if type(value) is str:
        return value[:MAX_CHARACTERS]
    try:
        return JsonForm(MAX_CHARACTERS).text(value)
    except TooLarge:
        return f"<{type_name(type(value))[:MAX_CHARACTERS]}>"
