"""The OTLP receiver over HTTP, with OpenTelemetry's exporter and with requests that are wrong."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from headrace.agents.gateway.journal import Journal, JournalFull
from headrace.agents.otel.config import OtlpConfig
from headrace.agents.otel.otlp import JSON, PROTOBUF, BadOtlp, parse_export
from headrace.agents.otel.receiver import ReceiverUnusable, run_receiver
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord, cluster_fingerprint
from headrace.deploy.system.ports import free_port
from tests.agents.otel.spans import RECORDED
from tests.agents.otel.test_processor import AGENT, CHAT
from tests.agents.sdk_helpers import NOWHERE

SPAN = {
    "traceId": "5b8efff798038103d269b633813fc60c",
    "spanId": "eee19b7ec3c1b174",
    "name": "chat m",
    "startTimeUnixNano": "1700000000000000000",
    "endTimeUnixNano": "1700000001000000000",
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
}


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


@asynccontextmanager
async def receiving(folder: Path, **options: Any) -> AsyncIterator[str]:
    """The URL of a running receiver; without Kafka, its events wait in the spool."""
    options = {"flush_s": 0.0, "grace_s": 0.0} | options
    config = OtlpConfig(bootstrap=NOWHERE, port=free_port(), folder=folder, **options)
    stop, ready = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_receiver(config, stop=stop, ready=ready.set))
        await ready.wait()
        try:
            yield f"http://127.0.0.1:{config.port}/v1/traces"
        finally:
            stop.set()


async def post(url: str, body: bytes, kind: str = JSON, **headers: str) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={"Content-Type": kind, **headers}) as answer,
    ):
        assert answer.content_type in (JSON, PROTOBUF)
        return answer.status, await answer.read()


def left_in(folder: Path) -> list[SpooledRecord]:
    def unexpected(path: str, loss: Loss) -> None:
        raise AssertionError(f"{path}: {loss}")

    spool, found = Spool(folder / "spool", 1 << 30, cluster_fingerprint(NOWHERE), unexpected), []
    while spool.adopt():
        while taken := spool.take_adopted(100, 1 << 30):
            found += [each.record for each in taken]
            for each in taken:
                spool.done(each.segment)
    spool.close()
    return found


def types(records: list[SpooledRecord]) -> list[str]:
    return [dict(each.headers)["ce_type"].decode().removeprefix("headrace.").removesuffix(".v1") for each in records]


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_what_the_exporter_sends_is_durable(tmp_path: Path, compression: Compression) -> None:
    async with receiving(tmp_path, mask=True) as url:
        exporter = OTLPSpanExporter(endpoint=url, compression=compression)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("t")

        def work() -> None:
            with (
                tracer.start_as_current_span("agent", attributes=AGENT),
                tracer.start_as_current_span("chat", attributes=CHAT),
            ):
                pass
            provider.shutdown()

        await asyncio.to_thread(work)
    records = left_in(tmp_path)
    assert types(records) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert b"a@b.org" not in records[1].value


async def test_a_repeated_export_changes_nothing_even_after_a_restart(tmp_path: Path) -> None:
    found = []
    for part in ("one", "two"):
        body = json.dumps(json.loads((RECORDED / "gen_ai.json").read_text())["request"]).encode()
        async with receiving(tmp_path / part) as url:
            for _ in range(2):
                status, answer = await post(url, gzip.compress(body), JSON, **{"Content-Encoding": "gzip"})
                assert (status, json.loads(answer)) == (200, {})
        found.append(left_in(tmp_path / part))
    assert len(found[0]) == 6
    assert found[0] == found[1]


async def test_a_stop_sends_open_traces(tmp_path: Path) -> None:
    async with receiving(tmp_path, grace_s=60.0) as url:
        assert (await post(url, json.dumps(request(SPAN)).encode()))[0] == 200
    assert types(left_in(tmp_path)) == ["trajectory.started", "model.called", "trajectory.ended"]


async def test_a_span_that_is_not_valid_is_rejected_and_the_others_are_taken(tmp_path: Path) -> None:
    async with receiving(tmp_path) as url:
        status, answer = await post(url, json.dumps(request(SPAN, SPAN | {"spanId": "00"})).encode())
    rejected = json.loads(answer)["partialSuccess"]
    assert (status, rejected["rejectedSpans"]) == (200, "1")
    assert "span_id is 00: expected 8 bytes" in rejected["errorMessage"]
    assert len(left_in(tmp_path)) == 3


async def test_bad_requests_have_the_errors_of_the_protocol(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_request_bytes=2000) as url:
        status, answer = await post(url, b"\xff\xff", PROTOBUF)
        assert (status, "not an ExportTraceServiceRequest" in Status.FromString(answer).message) == (400, True)
        assert (await post(url, b"{"))[0] == 400
        assert (await post(url, b"[]"))[0] == 400
        assert (await post(url, b"not gzip", JSON, **{"Content-Encoding": "gzip"}))[0] == 400
        assert (await post(url, b"{}", "text/plain"))[0] == 415
        assert (await post(url, b"{}", JSON, **{"Content-Encoding": "snappy"}))[0] == 415
        bomb = gzip.compress(b" " * 10_000_000)
        status, answer = await post(url, bomb, JSON, **{"Content-Encoding": "gzip"})
        assert status == 413
        assert "max_request_bytes" in json.loads(answer)["message"]
        status, answer = await post(url, b"", PROTOBUF)
        assert (status, ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans) == (200, 0)


@pytest.mark.parametrize("path", ["/", "/v1/logs", "/v1/traces/"])
async def test_an_unknown_path_is_answered_with_the_one_that_exists(tmp_path: Path, path: str) -> None:
    async with receiving(tmp_path) as url:
        status, answer = await post(url.removesuffix("/v1/traces") + path, b"{}")
        assert (status, json.loads(answer)["message"].startswith(f"POST {path} is not an endpoint")) == (404, True)
        assert "takes POST /v1/traces" in json.loads(answer)["message"]
        status, answer = await post(url.removesuffix("/v1/traces") + path, b"", PROTOBUF)
        assert (status, "takes POST /v1/traces" in Status.FromString(answer).message) == (404, True)


async def test_senders_wait_while_nothing_can_be_made_durable(tmp_path: Path) -> None:
    async with receiving(tmp_path) as url:
        body = json.dumps(request(SPAN)).encode()
        with patch.object(Spool, "append", side_effect=OSError("disk failed")):
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, data=body, headers={"Content-Type": JSON}) as answer,
            ):
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            assert (await post(url, body))[0] == 503
        assert (await post(url, body))[0] == 200
    assert len(left_in(tmp_path)) == 3


async def test_more_events_than_the_spool_holds_at_once_are_recorded_in_parts(tmp_path: Path) -> None:
    """Those that completed while Kafka was away and the spool full: all at once they would never fit."""
    write, most = Journal.write, 32 * 1024

    async def limited(journal: Journal, records: Sequence[SpooledRecord], events: int) -> bool:
        if sum(len(each.value or b"") for each in records) > most:
            raise JournalFull
        return await write(journal, records, events)

    spans = [SPAN | {"traceId": f"{number:032x}", "spanId": f"{number:016x}"} for number in range(1, 101)]
    async with receiving(tmp_path, spool_bytes=16 * most) as url:
        with patch.object(Journal, "write", limited):
            assert (await post(url, json.dumps(request(*spans)).encode()))[0] == 200
    subjects = [dict(each.headers)["ce_subject"] for each in left_in(tmp_path)]
    assert (len(subjects), len(set(subjects))) == (300, 100)


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b'{"resourceSpans": 3}', b'{"resourceSpans": [[]]}']))
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    for kind in (PROTOBUF, JSON):
        with suppress(BadOtlp):
            assert parse_export(body, kind).rejected >= 0


def test_senders_elsewhere_are_not_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="collector"):
        OtlpConfig(bootstrap=NOWHERE, port=1, folder=tmp_path, host="0.0.0.0")


async def test_a_taken_port_is_reported_with_its_setting(tmp_path: Path) -> None:
    async with receiving(tmp_path / "first") as url:
        port = int(url.split(":")[2].split("/")[0])
        config = OtlpConfig(bootstrap=NOWHERE, port=port, folder=tmp_path / "second", flush_s=0.0)
        with pytest.RaisesGroup(
            pytest.RaisesExc(ReceiverUnusable, match=rf"{port}.*HEADRACE_OTLP_PORT"), flatten_subgroups=True
        ):
            await run_receiver(config, stop=asyncio.Event(), ready=lambda: None)
