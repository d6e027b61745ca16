"""What of a request is new: clients send the whole conversation with every call, an event has what was added to it.

A conversation is known by a chain of its messages' digests, as in the gateway. Nothing is guessed: a history that was
edited is recorded anew.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.agents.gateway.canonical import Message
from headrace.agents.trajectory import ToolCall, Trajectory

K = TypeVar("K")
V = TypeVar("V")

MAX_TRAJECTORIES = 1_000
"""Trajectories whose conversations are remembered, the latest."""

MAX_KNOWN = 256
"""Points of a trajectory's conversations, and open tool calls, that are remembered, the latest."""


@dataclass(slots=True)
class Conversations:
    """The conversations of one trajectory."""

    known: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Chains up to the end of a request, and up to the end of its answer."""
    open_calls: OrderedDict[str, ToolCall] = field(default_factory=OrderedDict)
    """Tool calls without a result, by id."""
    unreported: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Chains up to the end of requests whose answers the host may have before the recorder has them."""
    early: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Ids of tool calls that were recorded with their results, before the answers that they are part of."""
    answer: str | None = None
    """Text of the last answer; ``None`` before the first one, and after one that calls tools."""

    def known_length(self, chain: list[bytes]) -> int:
        """Return how many leading messages of a conversation are recorded."""
        return next((length for length in range(len(chain) - 1, 0, -1) if chain[length] in self.known), 0)

    def add(self, point: bytes) -> None:
        """Remember that everything up to ``point`` is recorded."""
        _remember(self.known, point, None)

    def sent(self, point: bytes) -> None:
        """Remember a request whose answer will be reported late."""
        _remember(self.unreported, point, None)

    def answered_length(self, chain: list[bytes]) -> int | None:
        """Return how many leading messages of a conversation are the request of an answer that is not reported."""
        return next((length for length in range(len(chain) - 1, 0, -1) if chain[length] in self.unreported), None)

    def opened(self, call_id: str, call: ToolCall) -> None:
        """Remember a tool call that waits for its result."""
        _remember(self.open_calls, call_id, call)

    def recorded_early(self, call_id: str) -> None:
        """Remember a tool call whose answer is yet to be reported."""
        _remember(self.early, call_id, None)

    def is_early(self, call_id: str) -> bool:
        """Return whether a tool call of an answer is recorded already, and forget it."""
        if call_id not in self.early:
            return False
        del self.early[call_id]
        return True


def _remember(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    if len(known) > MAX_KNOWN:
        known.popitem(last=False)


class Memory:
    """The conversations of the latest trajectories, and trajectories that calls outside any trajectory belong to."""

    def __init__(self) -> None:
        self._by_trajectory: OrderedDict[str, Conversations] = OrderedDict()
        self._inferred: OrderedDict[bytes, Trajectory] = OrderedDict()

    def of(self, trajectory: Trajectory) -> Conversations:
        """Return the conversations of a trajectory."""
        found = self._by_trajectory.get(trajectory.id)
        if found is None:
            found = self._by_trajectory.setdefault(trajectory.id, Conversations())
            if len(self._by_trajectory) > MAX_TRAJECTORIES:
                self._by_trajectory.popitem(last=False)
        return found

    def inferred(self, chain: list[bytes]) -> Trajectory | None:
        """Return the trajectory, opened for a call outside any, whose conversation this one continues."""
        points = reversed(chain)
        return next((found for point in points if (found := self._inferred.get(point)) is not None), None)

    def infer(self, point: bytes, trajectory: Trajectory) -> None:
        """Remember that a conversation up to the answer ``point`` is that of ``trajectory``."""
        self._inferred[point] = trajectory
        if len(self._inferred) > MAX_TRAJECTORIES:
            self._inferred.popitem(last=False)


def chain_of(messages: tuple[Message, ...], start: bytes = b"") -> list[bytes]:
    """Return a hash for the conversation up to each message; ``chain[n]`` stands for the first ``n``."""
    chain = [start]
    for message in messages:
        chain.append(hashlib.sha256(chain[-1] + message.digest).digest())
    return chain
