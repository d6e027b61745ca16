"""Which of several engines serves a call: a pure function of the call's key and of what is known about the engines.

Rendezvous hashing: a key ranks the engines, the same way in every process. Calls of one key go to the first engine of
its rank that is well and has room, so that they find their prefix in its cache; when an engine goes away, only its own
keys move.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of the calls to engines."""

    in_flight: int = 256
    """Largest number of calls in flight per engine."""
    waiting: int = 1024
    """Largest number of calls that wait for an engine with room; further ones are refused."""
    wait_s: float = 60.0
    """Longest wait for an engine with room, in seconds."""
    first_rest_s: float = 1.0
    """How long an engine that failed is left out; doubled with each further failure."""
    longest_rest_s: float = 30.0
    """Longest time for which an engine is left out."""


@dataclass(slots=True)
class _State:
    in_flight: int = 0
    failures: int = 0
    rests_until: float = float("-inf")


class EngineChoice:
    """The state of several engines, by their names. Times are seconds of the caller's clock."""

    def __init__(self, names: Sequence[str], limits: EngineLimits) -> None:
        if not names or len(set(names)) != len(names):
            raise ValueError(f"{len(names)} engines: expected at least one, each with its own address")
        self._limits = limits
        self._states = {name: _State() for name in names}

    def ranked(self, key: bytes) -> list[str]:
        """Return all engines in the order of ``key``."""
        if len(self._states) == 1:
            return list(self._states)
        return sorted(self._states, key=lambda name: hashlib.blake2b(name.encode(), key=_folded(key)).digest())

    def candidates(self, key: bytes, now: float, without: Collection[str] = ()) -> list[str]:
        """Return the engines that are well and not ``without``, in the order of ``key``; they may lack room."""
        return [name for name in self.ranked(key) if now >= self._states[name].rests_until and name not in without]

    def take(self, key: bytes, now: float, without: Collection[str] = ()) -> str | None:
        """Return the engine for a call, in flight until :meth:`give_back`; ``None`` if none has room."""
        for name in self.candidates(key, now, without):
            if self._states[name].in_flight < self._limits.in_flight:
                self._states[name].in_flight += 1
                return name
        return None

    def has_room(self, now: float) -> bool:
        """Return whether an engine is well and has room."""
        return any(
            state.in_flight < self._limits.in_flight and now >= state.rests_until for state in self._states.values()
        )

    def give_back(self, name: str) -> None:
        """End a call of ``name``."""
        self._states[name].in_flight -= 1

    def failed(self, name: str, now: float, at_least_s: float = 0.0) -> None:
        """Leave ``name`` out for a while, and ``at_least_s`` seconds. Calls that fail together count once."""
        state = self._states[name]
        if now < state.rests_until:
            return
        rest_s = min(self._limits.first_rest_s * 2.0 ** min(state.failures, 30), self._limits.longest_rest_s)
        state.failures += 1
        state.rests_until = now + max(rest_s, min(at_least_s, self._limits.longest_rest_s))

    def succeeded(self, name: str) -> None:
        """Forget earlier failures of ``name``."""
        self._states[name].failures = 0

    def retry_after_s(self, now: float) -> float:
        """Return in how many seconds the first engine will be well; 0 if one is."""
        return max(0.0, min(state.rests_until for state in self._states.values()) - now)

    def in_flight(self) -> dict[str, int]:
        """Return the number of calls in flight of each engine."""
        return {name: state.in_flight for name, state in self._states.items()}


def _folded(key: bytes) -> bytes:
    """BLAKE2b takes keys of up to 64 bytes."""
    return key if len(key) <= 64 else hashlib.blake2b(key).digest()
