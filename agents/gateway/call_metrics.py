"""Counts of the gateway's calls, through OpenTelemetry. Every name is declared here, once.

Without a metric reader (``deploy/processes/telemetry.py`` sets one up) the instruments do nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from headrace.agents.gateway.answer import AnswerUsage
from headrace.agents.gateway.answer_parser import Disagreement
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.splice import Refusal
from headrace.schemas.arrays import IntArray

METER = "headrace.gateway"

GAUGES: Mapping[str, tuple[str, str]] = {
    "headrace.gateway.calls.open": ("{call}", "Calls without an answer."),
    "headrace.gateway.sessions": ("{session}", "Open sessions."),
    "headrace.gateway.nodes": ("{answer}", "Answers whose exact tokens are known."),
    "headrace.gateway.nodes.memory": ("By", "Memory of these answers."),
    "headrace.gateway.journal.unacknowledged": ("{event}", "Events that Kafka has not acknowledged."),
    "headrace.gateway.journal.refused": ("{event}", "Events of refused calls that wait for another attempt."),
    "headrace.gateway.journal.holes": ("{event}", "Events that are neither on disk nor in Kafka."),
}
"""Name → unit and description of what is read on collection."""


class Echo(StrEnum):
    """How the prompt that an engine reports with its answer compares with the one that it was sent."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"

    @classmethod
    def of(cls, sent: IntArray, reported: IntArray | None) -> "Echo":
        """Return how ``reported`` (int32) compares with ``sent``; ``None``: the engine reported nothing."""
        if reported is None:
            return cls.MISSING
        return cls.EQUAL if reported == sent else cls.DIFFERENT


class CallMetrics:
    """The instruments of calls."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls so far."""
        self.errors: Counter[ErrorKind] = Counter()
        """Failed calls so far, by error."""
        self.clients_left = 0
        """Calls so far whose client left."""
        meter = get_meter(METER)
        self._calls = meter.create_counter("headrace.gateway.calls", "{call}", "Calls, by API and outcome.")
        self._errors = meter.create_counter("headrace.gateway.errors", "{call}", "Failed calls, by API and error.")
        self._left = meter.create_counter("headrace.gateway.left", "{call}", "Calls whose client left, by API.")
        self._tokens = meter.create_counter("headrace.gateway.tokens", "{token}", "Tokens, by kind.")
        self._unspliced = meter.create_counter(
            "headrace.gateway.unspliced", "{call}", "Calls whose exact tokens could not be continued, by reason."
        )
        self._echoes = meter.create_counter(
            "headrace.gateway.echoes",
            "{call}",
            "Answers, by how the prompt that the engine reports compares with ours.",
        )
        self._withheld = meter.create_counter(
            "headrace.gateway.withheld", "{call}", "Tool calls and arguments that were sampled and not delivered."
        )
        self._disagreements = meter.create_counter(
            "headrace.gateway.disagreements", "{choice}", "Streamed answers that parse otherwise as a whole, by place."
        )
        self._first = meter.create_histogram("headrace.gateway.first", "s", "Time to the first chunk of an answer.")
        self._duration = meter.create_histogram("headrace.gateway.duration", "s", "Duration of a call.")

    def began(self, api: Api, outcome: Outcome) -> None:
        """Count a call."""
        self.calls += 1
        self._calls.add(1, {"api": api, "outcome": outcome})

    def failed(self, api: Api, kind: ErrorKind) -> None:
        """Count a call that was answered with an error."""
        self.errors[kind] += 1
        self._errors.add(1, {"api": api, "error": kind})

    def left(self, api: Api) -> None:
        """Count a client that did not wait for its answer."""
        self.clients_left += 1
        self._left.add(1, {"api": api})

    def unspliced(self, reason: Refusal) -> None:
        """Count a call that starts a segment because its exact tokens cannot be continued."""
        self._unspliced.add(1, {"reason": reason})

    def echoed(self, echo: Echo) -> None:
        """Count an answer by the prompt that the engine reports."""
        self._echoes.add(1, {"echo": echo})

    def first(self, seconds: float) -> None:
        """Record the time to the first chunk."""
        self._first.record(seconds)

    def ended(self, api: Api, seconds: float, usage: AnswerUsage) -> None:
        """Record an answer that arrived."""
        self._duration.record(seconds, {"api": api})
        self._tokens.add(usage.prompt, {"kind": "prompt"})
        self._tokens.add(usage.completion, {"kind": "sampled"})

    def withheld(self, number: int) -> None:
        """Count what was not delivered of an answer."""
        if number:
            self._withheld.add(number)

    def disagreed(self, places: Iterable[Disagreement]) -> None:
        """Count where streaming and whole-text parsing differ."""
        for place in places:
            self._disagreements.add(1, {"place": place})


def observe_gateway(read: Callable[[], Mapping[str, float]]) -> None:
    """Export the gauges; ``read`` returns their values by name of :data:`GAUGES`."""
    meter = get_meter(METER)

    def observed(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(read()[name])]

    for name, (unit, about) in GAUGES.items():
        meter.create_observable_gauge(name, [observed(name)], unit, about)
