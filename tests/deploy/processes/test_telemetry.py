"""Metrics of a worker process: by Prometheus and by OTLP."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.telemetry import start_telemetry
from headrace.deploy.system.ports import HOST, free_port, metrics_url

OBSERVED = """
import sys
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.processes.telemetry import start_telemetry
from headrace.streams.lag import ConsumerLag
from headrace.streams.metrics import observe_lag
start_telemetry("assemble", load_settings())
observe_lag(lambda: [ConsumerLag("assemble", "events", 2, 1840, 0.5)])
"""


def worker(then: str, **settings: str) -> subprocess.Popen[str]:
    """Run a process with one metric and these settings; it executes ``then`` and ends when its input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", OBSERVED + then + "\nprint('ready', flush=True)\nsys.stdin.read()\n"],
        env={f"HEADRACE_{name.upper()}": value for name, value in settings.items()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_prometheus_reads_the_metrics_of_a_worker() -> None:
    port = free_port()
    with worker("", metrics_ports=f'{{"assemble": {port}}}') as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with urlopen(metrics_url(port), timeout=10) as answer:
            text = answer.read().decode()
        process.communicate()
    lines = [line for line in text.splitlines() if line.startswith("headrace_consumer_lag")]
    assert [line.split("{")[0] for line in lines] == ["headrace_consumer_lag", "headrace_consumer_lag_time_seconds"]
    assert [line.split()[-1] for line in lines] == ["1840.0", "0.5"]
    assert 'group="assemble"' in lines[0]
    assert 'service_name="headrace-assemble"' in text


def test_a_collector_receives_the_metrics_of_a_worker() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/metrics"
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer((HOST, 0), Collector) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        push = "from opentelemetry import metrics\nmetrics.get_meter_provider().force_flush()"
        with worker(push, otlp=f"http://{HOST}:{server.server_port}") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.kill()
    (scope,) = ExportMetricsServiceRequest.FromString(received[0]).resource_metrics[0].scope_metrics
    assert [metric.name for metric in scope.metrics] == ["headrace.consumer.lag", "headrace.consumer.lag.time"]


def test_a_taken_port_is_reported_with_its_setting() -> None:
    with HTTPServer((HOST, 0), BaseHTTPRequestHandler) as taken:
        settings = load_settings().model_copy(update={"metrics_ports": {"sink": taken.server_port}})
        with pytest.raises(StackError, match=rf"{taken.server_port} \(HEADRACE_METRICS_PORTS\)"):
            start_telemetry("sink", settings)
