"""Masks the texts of events, on the sender's thread. It fails closed: a text that cannot be masked is hidden whole.

"write to ada@mill.example"   →  "write to [email]", and {"email": 1} in the event
task_id "ada@mill.example"    →  "masked-5f0c3d9b8a7e6f10", the same for the same identifier and key
"""

import hmac
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from headrace.agents.masking.folding import folded, visible
from headrace.agents.masking.linear import Span
from headrace.agents.masking.presets import Preset
from headrace.agents.masking.settings import FAILED, FAILED_TEXT, FUNCTION, Masking
from headrace.agents.masking.timed_calls import CallFailed, TimedCalls
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.redaction import is_secret_name
from headrace.schemas.shape import AnyJson, FieldType, ListOf, MapOf, OneOf, PartOf, Text, shape_of

CHECK_AFTER: Final = 4_096
"""Characters after which the processor time is checked."""

YIELD_AFTER: Final = 4
"""Checks after which the thread offers the interpreter to others."""

REMEMBERED: Final = 4_096
"""Texts whose masked form is remembered, of at most ``LONGEST_REMEMBERED`` characters: keys, names and roles repeat."""

LONGEST_REMEMBERED: Final = 64

HIDDEN_TRAJECTORIES: Final = 10_000
"""Trajectories of which it is remembered that tokens were hidden."""

LARGE: Final = 10**8
"""Numbers from here on have nine digits and more, and may be those of a card, a phone or an account."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Masker:
    """The masks of one sender, with what it remembers between events. For use by one thread."""

    def __init__(self, masking: Masking) -> None:
        self.masking = masking
        self.calls = TimedCalls()
        self._texts: OrderedDict[str, tuple[str, Counter[str]]] = OrderedDict()
        """Masked form of short texts, with what was hidden, in the order of their last use."""
        self._without_tokens: OrderedDict[str, None] = OrderedDict()

    def event(self) -> "EventMask":
        """Return the mask of the next event."""
        return EventMask(self)

    def remembered(self, text: str) -> tuple[str, Counter[str]] | None:
        """Return the masked form of a short text that was masked before, with what was hidden."""
        found = self._texts.get(text)
        if found is not None:
            self._texts.move_to_end(text)
        return found

    def remember(self, text: str, masked: tuple[str, Counter[str]]) -> None:
        """Remember the masked form of a short text."""
        self._texts[text] = masked
        if len(self._texts) > REMEMBERED:
            self._texts.popitem(last=False)

    def hides_tokens_of(self, trajectory_id: str) -> bool:
        """Return whether tokens of the trajectory were hidden. Its later calls cannot be trained, and the hash of
        their prefix is that of hidden tokens, so their tokens are hidden, too."""
        return trajectory_id in self._without_tokens

    def hide_tokens_of(self, trajectory_id: str) -> None:
        """Note that tokens of the trajectory were hidden."""
        self._without_tokens[trajectory_id] = None
        if len(self._without_tokens) > HIDDEN_TRAJECTORIES:
            self._without_tokens.popitem(last=False)


class EventMask:
    """Masks the texts of one event and counts what it hides."""

    def __init__(self, masker: Masker) -> None:
        self.counts: Counter[str] = Counter()
        """Hidden spans by kind."""
        self.failure = ""
        """Why a text could not be masked; empty if all could."""
        self._masker = masker
        self._masking = masker.masking
        self._processor_s = self._calls_s = self._masking.limit_s
        self._since_check = 0
        self._checks = 0
        self._checked_at: float | None = None
        self._hides_api_keys = any(rule.kind == Preset.API_KEY for rule in self._masking.rules)

    def text(self, text: str) -> str:
        """Return ``text`` without what must be hidden; never raises."""
        shown, counts = self._masked(text)
        self.counts += counts
        return shown

    def identifier(self, text: str) -> str:
        """Return an identifier: unchanged, or derived from the whole of it if any of it must be hidden, so that equal
        identifiers stay equal and different ones different. UUIDs are never changed."""
        if _UUID.fullmatch(text):
            return text
        shown = self.text(text)
        if shown == text:
            return text
        return "masked-" + hmac.digest(self._masking.key or b"", text.encode("utf-8", "replace"), "sha256").hex()[:16]

    def is_secret(self, name: str) -> bool:
        """Return whether values under ``name`` in an object must be hidden."""
        return self._hides_api_keys and is_secret_name(name if name.isascii() else folded(name))

    def secret(self) -> str:
        """Return what replaces a value under the name of a secret."""
        self.counts[Preset.API_KEY] += 1
        return f"[{Preset.API_KEY}]"

    def permits(self, trajectory_id: str, token_ids: Sequence[int]) -> bool:
        """Return whether the text of ``token_ids`` contains nothing to hide: if not, or if that cannot be known, they
        must not be sent. After tokens of its trajectory were hidden, none are permitted."""
        decode = self._masking.decode
        if decode is None or self._masker.hides_tokens_of(trajectory_id):
            return False
        try:
            text = self._call(decode, list(token_ids))
        except CallFailed as error:
            self._fail(f"decode failed: {error}")
            return False
        return type(text) is str and self.text(text) == text

    def hide_tokens_of(self, trajectory_id: str) -> None:
        """Note that the event is sent without its tokens."""
        self._masker.hide_tokens_of(trajectory_id)

    def typed(self, value: Any, kind: FieldType) -> Any:
        """Return a plain value of a field of type ``kind`` with its texts masked; names and ids are identifiers."""
        match kind:
            case Text(most=most) if type(value) is str:
                return self.identifier(value) if most <= MAX_NAME else self.text(value)
            case ListOf(item=item) if type(value) is list:
                return [self.typed(each, item) for each in value]
            case MapOf(name=name, value=of) if type(value) is dict:
                return {self.typed(key, name): self.typed(each, of) for key, each in value.items()}
            case OneOf(options=options) if any(isinstance(option, Text) for option in options):
                return self.typed(value, next(option for option in options if isinstance(option, Text)))
            case PartOf(model=model) if type(value) is dict:
                types = {field.name: field.type for field in shape_of(model).fields}
                known = {key: self.typed(each, types[key]) for key, each in value.items() if key in types}
                return known | self._any({key: each for key, each in value.items() if key not in types})
            case AnyJson():
                return self._any(value)
            case _:
                return value

    def _any(self, value: Any) -> Any:
        if type(value) is str:
            return self.text(value)
        if type(value) is list:
            return [self._any(each) for each in value]
        if type(value) is dict:
            return {
                self.text(key): self.secret() if self.is_secret(key) else self._any(each) for key, each in value.items()
            }
        return self._number(value) if is_large_number(value) else value

    def _number(self, value: float) -> Any:
        """Return a number, or the text that is left of it."""
        digits = repr(value)
        shown = self.text(digits)
        return value if shown == digits else shown

    def _masked(self, text: str) -> tuple[str, Counter[str]]:
        """Return :meth:`text` and what was hidden, from memory if the text is short and known."""
        if len(text) > LONGEST_REMEMBERED:
            return self._computed(text)
        found = self._masker.remembered(text)
        if found is None:
            found = self._computed(text)
            if FAILED not in found[1]:
                self._masker.remember(text, found)
        return found

    def _computed(self, text: str) -> tuple[str, Counter[str]]:
        shown, counts = text, Counter[str]()
        if not text:
            return shown, counts
        try:
            shown = self._without_presets(text, counts)
            for rule in self._masking.rules:
                if not rule.is_preset and (spans := rule.spans(shown, self._spend)):
                    shown = _replaced(shown, spans, f"[{rule.kind}]")
                    counts[rule.kind] += len(spans)
            function = self._masking.function
            if function is not None:
                changed = self._call(function, shown)
                if type(changed) is not str:
                    raise CallFailed("it returned no str")
                if changed != shown:
                    shown = changed
                    counts[FUNCTION] += 1
        except CallFailed as error:
            self._fail(str(error))
            return FAILED_TEXT, Counter({FAILED: 1})
        except Exception as error:  # noqa: BLE001 - whatever it is, the text must not be sent
            self._fail(f"it raised {type(error).__name__}")
            return FAILED_TEXT, Counter({FAILED: 1})
        return shown, counts

    def _without_presets(self, text: str, counts: Counter[str]) -> str:
        """Return ``text`` without what the presets find, which is added to ``counts``. Of a text in which they find
        something, invisible characters are left out, too: one may stand in the middle of it."""
        searched = text if text.isascii() else folded(text)
        shown = text if len(searched) == len(text) else visible(text)
        for rule in self._masking.rules:
            if rule.is_preset and (spans := rule.spans(searched, self._spend)):
                shown, searched = (_replaced(each, spans, f"[{rule.kind}]") for each in (shown, searched))
                counts[rule.kind] += len(spans)
        return shown if counts else text

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why

    def _call(self, function: Any, argument: Any) -> Any:
        if self._calls_s <= 0:
            raise CallFailed(f"the texts of the event took over {self._masking.limit_s:.3g} s")
        began = time.monotonic()
        try:
            return self._masker.calls.call(function, argument, self._calls_s)
        finally:
            self._calls_s -= time.monotonic() - began

    def _spend(self, characters: int) -> None:
        """Note that ``characters`` were searched; raise :class:`CallFailed` once the processor time is used up."""
        if self._processor_s <= 0:
            raise CallFailed(f"the texts of the event took over {self._masking.limit_s:.3g} s of processor time")
        self._since_check += characters
        if self._since_check < CHECK_AFTER:
            return
        self._since_check = 0
        now = time.thread_time()
        if self._checked_at is not None:
            self._processor_s -= now - self._checked_at
        self._checked_at = now
        self._checks += 1
        if self._checks % YIELD_AFTER == 0:
            time.sleep(0)


def is_large_number(value: object) -> bool:
    """Return whether ``value`` is a plain number with nine digits or more before the point."""
    return type(value) in (int, float) and not -LARGE < value < LARGE  # type: ignore[operator]


def masked_identifier(masking: Masking, text: str) -> str:
    """Return an identifier as it is in events. Callable from any thread."""
    masker = Masker(masking)
    try:
        return masker.event().identifier(text)
    finally:
        masker.calls.close()


def _replaced(text: str, spans: Sequence[Span], label: str) -> str:
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], label]
        at = end
    return "".join([*parts, text[at:]])
