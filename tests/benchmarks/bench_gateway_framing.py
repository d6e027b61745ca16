"""What framing one delta costs the gateway, next to ``json.dumps`` of the same objects.

    python -m tests.benchmarks.bench_gateway_framing

Each API frames a stream of 20,000 short text deltas (half of them with letters beyond ASCII), and one of tool
arguments; both sides get ready values and return bytes. ``json.dumps`` gets the parsed events, so it neither builds
them nor keeps state. Figures are medians of five rounds, in microseconds of processor time per delta.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolStart,
)
from headrace.agents.gateway.framing.chat import ChatFramer
from headrace.agents.gateway.framing.completions import CompletionsFramer
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.messages import MessagesFramer
from headrace.agents.gateway.framing.responses import ResponsesFramer

META = AnswerMeta("resp_AUjC3mT0w5oAANzB0v6c3m1rQ0s4tQm9eXo", 1_790_000_000, "policy")
OPTIONS = AnswerOptions()
FRAMERS: dict[str, Callable[[], Framer]] = {
    "chat": lambda: ChatFramer(META, OPTIONS),
    "completions": lambda: CompletionsFramer(META, OPTIONS),
    "responses": lambda: ResponsesFramer(META, OPTIONS, {}),
    "messages": lambda: MessagesFramer(META, OPTIONS),
}


def streams(length: int) -> dict[str, list[Delta]]:
    """Streams of ``length`` deltas each, by what they consist of."""
    texts = [(" the", " naïve", ' "x"\n', " 日本")[number % 4] for number in range(length)]
    return {
        "text": [TextDelta(0, text) for text in texts],
        "reasoning": [ReasoningDelta(0, text) for text in texts],
        "arguments": [ToolStart(0, 0, "call_1", "bash"), *(ToolArguments(0, 0, text) for text in texts)],
    }


def events_of(stream: bytes) -> list[tuple[str, object]]:
    """The events of ``stream``: the lines before the data, and the data parsed."""
    found = []
    for event in stream.decode().split("\n\n")[:-1]:
        head, _, data = event.rpartition("data: ")
        found.append((head, json.loads(data)))
    return found


def with_dumps(events: list[tuple[str, object]]) -> None:
    """Write ``events`` as server-sent events with the standard library."""
    for head, data in events:
        (head + "data: " + json.dumps(data) + "\n\n").encode()


def microseconds(work: Callable[[], object], count: int, rounds: int) -> float:
    """Processor time of ``work`` per delta."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times) / count * 1e6


def rows(length: int, rounds: int = 5) -> Iterator[tuple[str, str, float, float]]:
    """API, kind of delta, our cost and that of ``json.dumps``, in microseconds per delta."""
    for kind, deltas in streams(length).items():
        for api, make in FRAMERS.items():
            if api == "completions" and kind != "text":
                continue
            framer = make()
            framer.begin()
            events = events_of(b"".join(framer.delta(delta) for delta in deltas))

            def frame(make: Callable[[], Framer] = make, deltas: list[Delta] = deltas) -> None:
                one = make()
                for delta in deltas:
                    one.delta(delta)

            ours = microseconds(frame, length, rounds)
            yield api, kind, ours, microseconds(lambda events=events: with_dumps(events), length, rounds)


def main() -> None:
    """Print the table."""
    print("| API | deltas | headrace | `json.dumps` |\n|---|---|---|---|")
    for api, kind, ours, dumps in rows(20_000):
        print(f"| {api} | {kind} | {ours:.2f} µs | {dumps:.2f} µs |", flush=True)


if __name__ == "__main__":
    main()
