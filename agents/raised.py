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
from headrace.agents.masking.masker import EventMask

MAX_CHARACTERS: Final = 1_000
"""Longest text of an exception."""

MAX_MASKED: Final = 65_536
"""Longest argument of an exception that is masked, in characters; of a longer one only the length is shown."""

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

    def plain(self, mask: EventMask | None = None) -> dict[str, str] | str:
        """Return a text of up to ``MAX_CHARACTERS``, or ``{"error": TYPE, "message": TEXT}`` for a tool's result.

        ``mask``: hides parts of the text, before it is cut: of half an address the mask would recognise nothing.
        """
        name, message = type_name(self.kind)[:MAX_CHARACTERS], self._message(mask)
        text = (f"{name}: {message}" if message else name)[:MAX_CHARACTERS]
        return {"error": name, "message": text} if self.is_result else text

    def _message(self, mask: EventMask | None) -> str:
        arguments = self.arguments
        if issubclass(self.kind, OSError) and len(arguments) == 2 and type(arguments[0]) is int:
            about = "" if self.file is None else f": {_shown(self.file, mask)}"
            return f"[Errno {_shown(arguments[0], mask)}] {_shown(arguments[1], mask)}{about}"
        shown, length = list[str](), 0
        for argument in arguments:
            shown.append(_shown(argument, mask))
            length += len(shown[-1]) + 2
            if length > MAX_CHARACTERS:
                break
        return ", ".join(shown)


def _shown(value: Any, mask: EventMask | None) -> str:
    if type(value) is str:
        if mask is None:
            return value[:MAX_CHARACTERS]
        return mask.text(value) if len(value) <= MAX_MASKED else f"<{len(value):,} characters>"
    try:
        return JsonForm(MAX_CHARACTERS if mask is None else MAX_MASKED, mask).text(value)
    except TooLarge:
        return f"<{type_name(type(value))[:MAX_CHARACTERS]}>"
