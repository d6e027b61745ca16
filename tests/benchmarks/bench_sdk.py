"""Cost of an SDK call on the host's thread, compared with an OpenTelemetry span and ``queue.put_nowait`` in one run.

    python tests/benchmarks/bench_sdk.py [--kafka HOST:PORT] [--calls 20000]

Without ``--kafka`` only the rows with the broker down are measured. Calls come in bursts with pauses, as an agent's do,
while the sender thread works: an endless loop would measure how two threads share one interpreter.
"""

import argparse
import logging
import queue
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from headrace.agents.sdk import Headrace
from headrace.schemas.events import VersionSpan

CONTEXT = array("i", range(200))
SAMPLED = array("i", range(50))
LOGPROBS = array("f", [-0.5] * 50)
SPANS = [VersionSpan(version=3, start=0, end=50)]
DIGEST = "0" * 64
BURST = 20
PAUSE_S = 0.004


class Discard(SpanExporter):
    """Discards spans."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def measure(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Median and 99th percentile of one ``call``, in microseconds, over bursts of 20 with 4 ms between."""
    took = []
    for number in range(calls):
        if number % BURST == 0:
            time.sleep(PAUSE_S)
        start = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - start) / 1e3)
    took.sort()
    return statistics.median(took), took[int(0.99 * len(took))]


def rows_of(headrace: Headrace) -> dict[str, Callable[[], object]]:
    t = headrace.trajectory(task_id="q", agent="bench")
    arguments = {"query": "where does ada work"}

    def model_called() -> None:
        t.model_called(
            "policy",
            prefix_length=512,
            prefix_sha256=DIGEST,
            context_ids=CONTEXT,
            sampled_ids=SAMPLED,
            logprobs=LOGPROBS,
            version_spans=SPANS,
            finish_reason="stop",
            latency_s=0.2,
        )

    def tool() -> None:
        with t.tool("search", arguments) as call:
            call.result = "ada works at …"

    return {
        "model_called": model_called,
        "with tool (2 events)": tool,
        "pruned": lambda: t.pruned(["c1"], 100, 60),
        "trajectory (start)": lambda: headrace.trajectory(task_id="q", agent="bench"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", help="address of a running broker")
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    tracer = provider.get_tracer("bench")
    waiting: queue.Queue[object] = queue.Queue()
    empty = measure(lambda: None, options.calls)[0]

    logging.disable(logging.ERROR)  # the client logs every failed connection to the missing broker
    print(
        f"{'µs a call on the host thread':<44}{'median':>9}{'p99':>9}   (clock and empty call: {empty:.2f} taken off)"
    )

    def show(name: str, call: Callable[[], object]) -> None:
        median, p99 = measure(call, options.calls)
        print(f"{name:<44}{median - empty:>9.2f}{p99 - empty:>9.2f}", flush=True)

    folder = tempfile.mkdtemp()  # for the spool: with the broker down, events go to disk while the calls are measured
    brokers = {"broker down": "127.0.0.1:9"} | ({"broker up": options.kafka} if options.kafka else {})
    for state, address in brokers.items():
        headrace = Headrace(address, source="bench", queue_size=100_000, flush_deadline_s=0, spool_folder=folder)
        for name, call in rows_of(headrace).items():
            show(f"headrace, {state}: {name}", call)
        full = Headrace(address, source="bench", queue_size=1, flush_deadline_s=0, spool_bytes=0)
        if state == "broker down":
            show(f"headrace, {state}: model_called, queue full", rows_of(full)["model_called"])
        headrace.flush(5.0 if state == "broker up" else 0)
        print(f"    {headrace.stats}")
        headrace.close()
        full.close()
    show("OpenTelemetry SDK: span start + end", lambda: tracer.start_span("call").end())
    show("queue.Queue.put_nowait", lambda: waiting.put_nowait(None))
    provider.shutdown()


if __name__ == "__main__":
    main()
