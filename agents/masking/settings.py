"""What an SDK hides in the texts of its events, as settings.

Masking()                                                          all presets
Masking((Preset.EMAIL,), patterns={"order": r"ORD-[0-9]{8}"})
Masking(function=lambda text: text.replace("Ada", "[name]"))
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.agents.masking.linear import linear
from headrace.agents.masking.presets import Preset, Rule, rules_of
from headrace.schemas.bounds import MAX_NAME

FUNCTION = "function"
"""Kind under which texts that the host's function changed are counted."""

FAILED = "failed"
"""Kind under which texts are counted that are hidden whole, because masking them failed."""

FAILED_TEXT = "[hidden: masking failed]"
"""Replacement of such a text."""

MIN_KEY_BYTES = 16
"""Shortest key for identifiers."""


@dataclass(frozen=True, slots=True)
class Masking:
    """Masks for every text of every event. They are applied on the SDK's thread, before an event is sent or written to
    disk."""

    presets: Iterable[Preset | str] = tuple(Preset)
    """Presets; the default is all of them."""
    patterns: Mapping[str, str | re.Pattern[str]] = field(default_factory=dict)
    """Regular expressions by kind; what matches becomes ``[KIND]``. They must take linear time
    (:mod:`headrace.agents.masking.linear`)."""
    function: Callable[[str], str] | None = None
    """Returns a text without what must be hidden; called last, on a thread of its own, with every text."""
    decode: Callable[[list[int]], str] | None = None
    """Returns the text of token ids, such as ``tokenizer.decode``. Token ids are sent only if nothing in their text is
    masked; without this function none are sent."""
    limit_s: float = 1.0
    """Longest time for the texts of one event, in seconds: processor time of presets and patterns, and time in
    ``function`` and ``decode``. What is left then is hidden whole."""
    key: bytes | None = None
    """Secret from which masked identifiers are derived, at least 16 bytes. By default it is random, and an identifier
    that contains what must be hidden is another one in each process."""
    rules: tuple[Rule, ...] = field(init=False)
    """Rules of presets and patterns, in the order in which they are applied."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if a preset is unknown, a pattern or its kind cannot be used, or a limit is invalid."""
        rules: list[Rule] = []
        if isinstance(self.presets, str):
            raise ValueError(f"presets is the text {self.presets!r}: expected several presets: ({self.presets!r},)")
        for preset in self.presets:
            try:
                rules += rules_of(Preset(preset))
            except ValueError as error:
                raise ValueError(f"there is no preset {preset!r}: expected one of {', '.join(Preset)}") from error
        for kind, pattern in self.patterns.items():
            if not 0 < len(kind) <= MAX_NAME or kind in (*Preset, FUNCTION, FAILED):
                raise ValueError(f"a pattern is called {kind!r}: expected another name, of 1 to {MAX_NAME} characters")
            rules.append(Rule(kind, linear(pattern), is_preset=False))
        if not self.limit_s > 0:
            raise ValueError(f"limit_s is {self.limit_s}: expected more than 0 seconds")
        if self.key is not None and len(self.key) < MIN_KEY_BYTES:
            raise ValueError(f"key has {len(self.key)} bytes: expected at least {MIN_KEY_BYTES}")
        object.__setattr__(self, "rules", tuple(rules))
        object.__setattr__(self, "key", self.key or secrets.token_bytes(32))
