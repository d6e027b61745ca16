"""The embedded engine's HTTP interface, used through the ordinary ClickHouse client."""

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import urlsplit

import clickhouse_connect
import lz4.frame  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from starlette.requests import Request
from starlette.types import Message

from headrace.deploy.clickhouse.content_encoding import BodyTooLarge, UnknownEncoding, decompress
from headrace.deploy.clickhouse.server import _PiecewiseResponse, _read_form, serve_clickhouse
from headrace.deploy.errors import StackError
from headrace.deploy.system.ports import HOST, free_port

FRONT = """
import pathlib, sys
from headrace.deploy.clickhouse.server import _read_form, serve_clickhouse
folder = pathlib.Path(sys.argv[1])
serve_clickhouse(folder / "data", secrets=folder / "secrets", host="127.0.0.1", port=int(sys.argv[2]),
                 ready=lambda: print("ready", flush=True))
print("closed", flush=True)
"""


@contextmanager
def front(folder: Path, port: int, program: str = FRONT) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def writer(folder: Path) -> dict[str, str]:
    return {"username": "writer", "password": (folder / "secrets" / "writer").read_text()}


@pytest.fixture
def client(clickhouse: str) -> Iterator[Client]:
    client = clickhouse_connect.get_client(**login(clickhouse), autogenerate_session_id=False)
    client.command("DROP TABLE IF EXISTS t")
    client.command(
        "CREATE TABLE t (a UInt64, s String) ENGINE = ReplacingMergeTree ORDER BY a "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    yield client
    client.close()


def login(clickhouse: str) -> dict[str, Any]:
    """Returns the address and the account in ``clickhouse`` as arguments of the client."""
    parts = urlsplit(clickhouse)
    return {"host": HOST, "port": parts.port, "username": parts.username, "password": parts.password}


def post(url: str, body: bytes | None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Returns a request with the account in ``url``; without ``body`` a GET."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    account, at, place = url.removeprefix("http://").rpartition("@")
    if at:
        named.setdefault("Authorization", f"Basic {b64encode(account.encode()).decode()}")
    request = urllib.request.Request(f"http://{place}", data=body, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


pytestmark = pytest.mark.clickhouse


def test_rows_go_in_and_come_out(client: Client) -> None:
    client.insert("t", [[1, "x"], [2, "naïve\n\t'"]], column_names=["a", "s"])
    assert client.query("SELECT * FROM t ORDER BY a").result_rows == [(1, "x"), (2, "naïve\n\t'")]
    assert client.query_arrow("SELECT a FROM t ORDER BY a").column("a").to_pylist() == [1, 2]
    assert client.query("SELECT * FROM t LIMIT 0").column_names == ("a", "s")
    with client.query_row_block_stream("SELECT number FROM numbers(100000)") as blocks:
        assert sum(len(block) for block in blocks) == 100_000


def test_an_arrow_insert_is_executed_once_per_token(client: Client) -> None:
    rows = pa.table({"a": pa.array([1, 2], pa.uint64()), "s": ["x", "y"]})
    for token in ("one", "one", "two"):
        client.insert_arrow("t", rows, settings={"insert_deduplication_token": token})
    assert client.query("SELECT count() FROM t").result_rows == [(4,)]
    # The token applied only to those inserts.
    client.insert_arrow("t", rows)
    assert client.query("SELECT count() FROM t").result_rows == [(6,)]


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
def test_inserts_may_be_compressed(clickhouse: str, client: Client, compression: str) -> None:
    packed = clickhouse_connect.get_client(**login(clickhouse), compress=compression)
    packed.insert("t", [[n, "x" * 100] for n in range(1000)], column_names=["a", "s"])
    assert packed.query("SELECT sum(a), sum(length(s)) FROM t").result_rows == [(499_500, 100_000)]
    packed.close()


def test_parameters_are_values_and_never_sql(client: Client) -> None:
    for value in ("plain", "'; DROP TABLE t --", "tab\tnewline\nback\\slash", "x" * 20_000):
        assert client.query("SELECT {v:String}", parameters={"v": value}).result_rows == [(value,)]


def test_settings_apply_to_one_statement(client: Client) -> None:
    query = "SELECT getSetting('max_threads')"
    before = client.query(query).result_rows
    assert client.query(query, settings={"max_threads": 1}).result_rows == [(1,)]
    client.command("SET max_threads = 1")
    for _ in range(8):  # uses every session
        assert client.query(query).result_rows == before
    with pytest.raises(DatabaseError, match="no_such_setting is not allowed"):
        client.query("SELECT 1", settings={"no_such_setting": 1})


def test_no_query_is_slower_at_its_third_execution_because_it_is_compiled(client: Client) -> None:
    for setting in ("compile_expressions", "compile_aggregate_expressions", "compile_sort_description"):
        assert client.query(f"SELECT toUInt8(getSetting('{setting}'))").result_rows == [(0,)], setting


def test_the_request_selects_the_database(clickhouse: str, client: Client) -> None:
    client.command("CREATE DATABASE IF NOT EXISTS other")
    client.command("CREATE TABLE IF NOT EXISTS other.u (a UInt8) ENGINE = Memory")
    other = clickhouse_connect.get_client(**login(clickhouse), database="other")
    assert other.query("SELECT currentDatabase(), count() FROM u").result_rows == [("other", 0)]
    assert client.query("SELECT currentDatabase()").result_rows == [("default",)]
    other.close()


def test_errors_are_those_of_clickhouse(client: Client) -> None:
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE") as caught:
        client.query("SELECT * FROM nowhere")
    assert caught.value.code == 60
    with pytest.raises(DatabaseError, match="SYNTAX_ERROR"):
        client.query("SELEC 1")
    with pytest.raises(DatabaseError):
        client.insert_arrow("t", pa.table({"nope": [1]}))
    assert client.query("SELECT 1").result_rows == [(1,)]


def test_a_statement_cannot_take_the_whole_machine(client: Client) -> None:
    with pytest.raises(DatabaseError, match="MEMORY_LIMIT_EXCEEDED"):
        client.query("SELECT groupArray(number) FROM numbers(1000000000)")
    assert client.query("SELECT 1").result_rows == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE k (a Int8) ENGINE = Kafka",
        "create table k (a Int8) engine /* really */ kafka() settings kafka_topic_list = 't'",
        "-- SELECT\nATTACH TABLE k (a Int8) ENGINE\n=\nKafka('b', 't', 'g', 'JSONEachRow')",
        "SELECT 1; CREATE TABLE k (a Int8) ENGINE = Kafka",
    ],
)
def test_kafka_tables_are_refused_before_they_break_the_folder(client: Client, statement: str) -> None:
    with pytest.raises(DatabaseError):
        client.command(statement)
    assert client.query("EXISTS TABLE k").result_rows == [(0,)]


def test_the_word_kafka_in_a_statement_is_allowed(client: Client) -> None:
    client.command("CREATE TABLE IF NOT EXISTS kafka_notes (a String DEFAULT 'ENGINE = Kafka') ENGINE = Memory")
    assert client.query("SELECT 'create engine = kafka'").result_rows == [("create engine = kafka",)]


async def test_the_async_client_runs_statements_in_parallel(clickhouse: str, client: Client) -> None:
    async with await clickhouse_connect.get_async_client(**login(clickhouse)) as other:
        await other.insert_arrow("t", pa.table({"a": pa.array([9], pa.uint64()), "s": ["x"]}))
        assert (await other.query("SELECT a FROM t")).result_rows == [(9,)]


def test_plain_http_is_enough(clickhouse: str, client: Client) -> None:
    for bare in ("/ping", "/"):
        assert post(f"http://{urlsplit(clickhouse).netloc.rpartition('@')[2]}{bare}", None)[:2] == (200, b"Ok.\n")
    status, body, headers = post(f"{clickhouse}/?query=SELECT%201%20AS%20one%20FORMAT%20JSONEachRow", None)
    assert (status, json.loads(body), headers["x-clickhouse-format"]) == (200, {"one": 1}, "JSONEachRow")
    assert post(f"{clickhouse}/?query=INSERT%20INTO%20t%20FORMAT%20CSV", b'1,"a"\n2,"b"\n')[0] == 200
    assert post(clickhouse, b"INSERT INTO t (a, s) FORMAT JSONEachRow\n" + b'{"a": 3, "s": "c"}')[0] == 200
    assert post(clickhouse, b"INSERT INTO t VALUES (4, 'FORMAT CSV')")[0] == 200
    assert post(clickhouse, b"INSERT INTO t SELECT 5, 'd'")[0] == 200
    status, body, headers = post(clickhouse, b"SELECT a, s FROM t ORDER BY a")
    assert (status, body) == (200, b"1\ta\n2\tb\n3\tc\n4\tFORMAT CSV\n5\td\n")
    assert json.loads(headers["x-clickhouse-summary"])["read_rows"] == "5"


def test_a_body_in_another_encoding_than_declared_is_an_error(clickhouse: str, client: Client) -> None:
    status, body, _ = post(clickhouse, b"SELECT 1", Content_Encoding="zstd")
    assert status == 400
    assert b"not zstd" in body
    assert b"Unknown Content-Encoding" in post(clickhouse, b"SELECT 1", Content_Encoding="br")[1]
    assert post(clickhouse, b"\xff\xfe")[0] == 400
    assert post(clickhouse, b"")[0] == 400


def test_acknowledged_rows_survive_a_kill(tmp_path: Path) -> None:
    port = free_port()
    with front(tmp_path, port) as process:
        client = clickhouse_connect.get_client(host=HOST, port=port, **writer(tmp_path))
        client.command("CREATE TABLE kept (a UInt64) ENGINE = MergeTree ORDER BY a")
        for n in range(20):
            client.insert("kept", [[n]], column_names=["a"])
        process.kill()
        process.wait()
    with front(tmp_path, port):
        client = clickhouse_connect.get_client(host=HOST, port=port, **writer(tmp_path))
        assert client.query("SELECT count(), sum(a) FROM kept").result_rows == [(20, 190)]


def test_sigterm_closes_the_engine_and_exits_with_status_0(tmp_path: Path) -> None:
    with front(tmp_path, free_port()) as process:
        process.terminate()
        assert process.stdout is not None
        assert process.stdout.read() == "closed\n"
        assert process.wait() == 0


def test_the_server_listens_only_on_loopback(tmp_path: Path) -> None:
    with chdir(tmp_path), pytest.raises(StackError, match=r"cannot listen on 0\.0\.0\.0"):
        serve_clickhouse(tmp_path, secrets=tmp_path, host="0.0.0.0", port=free_port(), ready=lambda: None)


def test_a_taken_port_is_reported(tmp_path: Path, clickhouse: str) -> None:
    port = urlsplit(clickhouse).port
    assert port is not None
    with chdir(tmp_path), pytest.raises(StackError, match=f"cannot listen on 127.0.0.1:{port}"):
        serve_clickhouse(tmp_path, secrets=tmp_path, host=HOST, port=port, ready=lambda: None)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("lz4", lz4.frame.compress),
    ],
)
def test_a_small_body_cannot_become_a_large_one(encoding: str, pack: object) -> None:
    packed = pack(bytes(100_000))  # type: ignore[operator]
    assert len(packed) < 10_000
    assert decompress(packed, encoding, 100_000) == bytes(100_000)
    with pytest.raises(BodyTooLarge):
        decompress(packed, encoding, 99_999)
    with pytest.raises(UnknownEncoding):
        decompress(b"not packed", encoding, 10)


ENCODINGS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "lz4": lz4.frame.compress,
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_truncated_body_is_refused(encoding: str) -> None:
    packed = ENCODINGS[encoding](bytes(range(256)) * 4000)
    for end in (len(packed) // 3, len(packed) - 1):
        with pytest.raises(UnknownEncoding):
            decompress(packed[:end], encoding, 10_000_000)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "lz4"])
def test_a_body_of_several_members_is_read_completely(encoding: str) -> None:
    packed = b"".join(ENCODINGS[encoding](part) for part in (b"one", b"", b"two" * 1000))
    assert decompress(packed, encoding, 10_000) == b"one" + b"two" * 1000
    with pytest.raises(BodyTooLarge):
        decompress(packed, encoding, 3_002)


def test_a_small_arrow_body_cannot_become_a_large_one(client: Client, clickhouse: str) -> None:
    rows = pa.table({"a": pa.repeat(pa.scalar(0, pa.uint64()), 2**24), "s": pa.repeat("", 2**24)})
    packed = pa.BufferOutputStream()
    with pa.ipc.new_stream(packed, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    body = packed.getvalue().to_pybytes()
    assert len(body) < rows.nbytes / 100
    statement = "INSERT%20INTO%20t%20FORMAT%20ArrowStream"
    status, answer, _ = post(f"{clickhouse}/?max_memory_usage=60000000&query={statement}", body)
    assert (status, b"MEMORY_LIMIT_EXCEEDED" in answer) == (500, True)
    # The server's limit applies if a client specifies none, and cannot be raised.
    assert post(f"{clickhouse}/?max_memory_usage=0&query={statement}", body)[0] == 403
    assert client.query("SELECT count() FROM t").result_rows == [(0,)]


def test_a_long_statement_is_refused_and_long_data_are_not(client: Client, clickhouse: str) -> None:
    assert post(clickhouse, b"SELECT 1 " + b" " * 2_000_000)[0] == 400
    values = ", ".join(f"({n}, 'x')" for n in range(200_000))
    assert len(values) > 2_000_000
    assert post(clickhouse, f"INSERT INTO t VALUES {values}".encode())[0] == 200
    assert client.query("SELECT count() FROM t").result_rows == [(200_000,)]


async def body_of(chunks: int, encoding: str, size: int = 1000) -> Request:
    sent = [b'--b\r\nContent-Disposition: form-data; name="query"\r\n\r\n', *[b"x" * size] * chunks, b"\r\n--b--\r\n"]

    async def receive() -> Message:
        return {"type": "http.request", "body": sent.pop(0), "more_body": bool(sent)}

    headers = [(b"content-type", b"multipart/form-data; boundary=b"), (b"content-encoding", encoding.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def test_the_total_size_of_a_form_is_limited() -> None:
    assert await _read_form(await body_of(9, "identity"), 10_000) == {"query": "x" * 9000}
    with pytest.raises(BodyTooLarge):
        await _read_form(await body_of(10, "identity"), 10_000)
    with pytest.raises(UnknownEncoding):
        await _read_form(await body_of(1, "gzip"), 10_000)


@pytest.mark.parametrize("settings", [{}, {"insert_deduplication_token": "c"}])
def test_rows_that_were_not_stored_are_not_acknowledged(client: Client, settings: dict[str, str]) -> None:
    client.command("ALTER TABLE t ADD CONSTRAINT named CHECK s != 'x'")
    rows = pa.table({"a": pa.array([1, 2], pa.uint64()), "s": ["x", "y"]})
    with pytest.raises(DatabaseError, match="VIOLATED_CONSTRAINT"):
        client.insert_arrow("t", rows, settings=settings)
    with pytest.raises(DatabaseError, match="VIOLATED_CONSTRAINT"):
        client.insert("t", [[1, "x"]], column_names=["a", "s"])
    client.insert_arrow("t", rows.slice(1), settings=settings)
    assert client.query("SELECT a, s FROM t").result_rows == [(2, "y")]


def unfinished(url: str) -> socket.socket:
    """A POST with the account in ``url`` whose body is never sent."""
    parts = urlsplit(url)
    account = b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    connection = socket.create_connection((HOST, parts.port or 0))
    connection.settimeout(30)
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {account}\r\nContent-Length: 10\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def test_incomplete_requests_of_one_account_do_not_delay_the_other(clickhouse: str, clickhouse_reader: str) -> None:
    with ExitStack() as open_connections:
        for _ in range(40):
            open_connections.enter_context(unfinished(clickhouse_reader))
        for url in (clickhouse_reader, clickhouse):
            assert post(url, b"SELECT 1") == (200, b"1\n", ANY)
        for _ in range(40):  # more than are read at the same time
            open_connections.enter_context(unfinished(clickhouse_reader))
        assert post(clickhouse, b"SELECT 1") == (200, b"1\n", ANY)


SHORT_FRONT = "import headrace.deploy.clickhouse.server\nheadrace.deploy.clickhouse.server.BODY_SECONDS = 0.5\n" + FRONT


def test_an_incomplete_body_is_refused_after_a_deadline(tmp_path: Path) -> None:
    port = free_port()
    with front(tmp_path, port, SHORT_FRONT), ExitStack() as open_connections:
        password = (tmp_path / "secrets" / "writer").read_text().strip()
        url = f"http://writer:{password}@{HOST}:{port}"
        waiting = [
            open_connections.enter_context(unfinished(url)) for _ in range(12)
        ]  # more than are read at the same time
        assert post(url, b"SELECT 1") == (200, b"1\n", ANY)
        answer = b"".join(iter(lambda: waiting[0].recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"send the request again" in answer


async def test_a_client_that_does_not_read_its_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.deploy.clickhouse.server.PIECE_BYTES", 10)
    monkeypatch.setattr("headrace.deploy.clickhouse.server.PIECE_SECONDS", 0.05)
    for takes, came in ((2, b"x" * 20), (9, b"x" * 25)):
        sent: list[Message] = []

        async def send(message: Message, takes: int = takes, sent: list[Message] = sent) -> None:
            if len(sent) > takes:
                await asyncio.Event().wait()
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing is asked of the client")

        await _PiecewiseResponse(b"x" * 25)({"type": "http"}, receive, send)
        assert b"".join(message.get("body", b"") for message in sent) == came
        assert sent[-1]["more_body"] is (came != b"x" * 25)


def test_a_large_response_arrives_completely(client: Client) -> None:
    rows = client.query("SELECT number, repeat('x', 10) FROM numbers(500000)").result_rows
    assert (len(rows), rows[-1]) == (500_000, (499_999, "x" * 10))


def test_a_reader_cannot_send_data(clickhouse: str, clickhouse_reader: str) -> None:
    body = b"SELECT 1 /*" + b" " * 1_200_000 + b"*/"
    assert post(clickhouse_reader, body)[0] == 413
    assert post(clickhouse_reader, gzip.compress(body), Content_Encoding="gzip")[0] == 413
    assert post(clickhouse, body)[0] == 400  # the writer's limit is that of a statement


@pytest.mark.parametrize("query_id", ["%E2%82%AC", "a%0D%0Ab", "a%20b", "x" * 201])
def test_a_query_id_that_does_not_fit_a_header_is_refused_before_anything_runs(
    client: Client, clickhouse: str, query_id: str
) -> None:
    status, answer, _ = post(f"{clickhouse}/?query_id={query_id}", b"INSERT INTO t VALUES (1, 'x')")
    assert (status, b"query_id" in answer) == (400, True)
    assert client.query("SELECT count() FROM t").result_rows == [(0,)]
    assert post(f"{clickhouse}/?query_id=ab-1", b"SELECT 1")[2]["x-clickhouse-query-id"] == "ab-1"
