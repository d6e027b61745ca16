"""Real servers for tests: each fixture starts one on a free loopback port, and its process tree ends with pytest.

Imports are inside the fixtures, so that a test which needs none of them pays for none.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from headrace.deploy.system.children import Child
    from tests.s3proxy.server import S3Server

# How long an example takes depends on the machine's load, not on the code.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For who asks only whether a test fails (tests/mutation): no example is made smaller, or kept for the next run.
settings.register_profile(
    "unshrunk", settings.get_profile("headrace"), phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile("headrace")

CACHE = Path(os.environ.get("HEADRACE_CACHE", Path.home() / ".cache" / "headrace"))
"""Only downloads and compiled bytecode outlive a test run."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``pytest -n``: keep the tests of a file together, and the files that need the one vLLM."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "vllm" if "vllm" in _servers_of(config.rootpath / file) else file

    config.option.loadscopereorder = False  # a file's number of tests does not tell how long they take
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For ``pytest -n``: begin with the files that start servers, which take longest. The others fill the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not _servers_of(item.path))


@cache
def _servers_of(file: Path) -> frozenset[str]:
    """The servers that the tests of a file need, by its marks."""
    text = file.read_text()
    return frozenset(server for server in ("kafka", "clickhouse", "vllm") if f"pytest.mark.{server}" in text)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Commands that run in a test's process make the umask private; the next test begins with the usual one."""
    os.umask(0o022)
    yield
    os.umask(0o022)


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Commands that run in a test's process configure its root logger and the client's; the next test begins with the
    usual ones.
    """
    root, client = logging.getLogger(), logging.getLogger("aiokafka")
    levels, handlers = (root.level, client.level), root.handlers[:]
    yield
    for logger, level in zip((root, client), levels, strict=True):
        logger.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(autouse=True, scope="session")
def _no_state_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests start spool their events in a folder of the tests, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _java_starts_fast() -> Iterator[None]:
    """Brokers of tests live for seconds: the second compiler and a concurrent collector would take a third of their
    processor time."""
    with pytest.MonkeyPatch.context() as patch:
        if "JAVA_TOOL_OPTIONS" not in os.environ:
            patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def _kafka_starts_fast(_java_starts_fast: None) -> Iterator[None]:
    """Brokers read their classes from an archive. Another Java program ignores it."""
    from tests.kafka_classes import kafka_classes

    with pytest.MonkeyPatch.context() as patch:
        options = f"-XX:SharedArchiveFile={kafka_classes(CACHE)} -Xlog:cds*=off"
        patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ['JAVA_TOOL_OPTIONS']} {options}")
        yield


@pytest.fixture(autouse=True)
def _no_secret_of_another_test() -> Iterator[None]:
    """Forget the secrets of a test's settings, so that they are not redacted in other tests' texts."""
    from headrace.schemas.redaction import forget_secrets

    yield
    forget_secrets()


@dataclass(frozen=True, slots=True)
class Engine:
    """A running vLLM."""

    url: str
    """Its address."""
    model_dir: Path
    """The model it started with."""


class RunningKafka:
    """A broker of one test, which can be made unavailable to its clients."""

    def __init__(self, folder: Path) -> None:
        """A broker that keeps its data in ``folder``."""
        from headrace.deploy.kafka.broker import Broker
        from headrace.deploy.system.ports import free_ports
        from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES

        self._broker = Broker(folder, *free_ports(2), MAX_REQUEST_BYTES, heap_mb=384)
        self._child: Child | None = None

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return self._broker.bootstrap

    @property
    def child(self) -> "Child":
        """Its process."""
        assert self._child is not None
        return self._child

    def start(self) -> None:
        """Start it on its data; returns once it answers and has all topics."""
        from headrace.deploy.kafka.broker import prepare_broker, wait_until_answers
        from headrace.deploy.kafka.jars import kafka_jars
        from headrace.deploy.system.children import Child
        from headrace.schemas.kafka.clients import open_consumer
        from headrace.schemas.kafka.reading import partitions_of
        from headrace.schemas.kafka.topic_creation import create_topics
        from headrace.schemas.topics import TOPICS

        async def prepare() -> Child:
            return Child(await prepare_broker(self._broker, await kafka_jars(CACHE)), self._broker.folder / "kafka.log")

        async def until_ready() -> None:
            await wait_until_answers(self.bootstrap, 90)
            await create_topics(self.bootstrap)
            # A new partition may have no leader for a moment, of which clients tell in their logs.
            async with open_consumer(self.bootstrap) as consumer:
                for topic in TOPICS:
                    await consumer.end_offsets(await partitions_of(consumer, topic))

        self._child = asyncio.run(prepare())
        _wait_for(until_ready(), self._child, 90)

    def kill(self) -> None:
        """``kill -9``."""
        self.child.kill()

    def freeze(self, frozen: bool = True) -> None:
        """SIGSTOP, or SIGCONT."""
        os.kill(self.pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    async def stays_listed(self) -> None:
        """Wait until it stays listed: after a freeze beyond its session it may be listed, and then not be for seconds.

        Raises ``TimeoutError`` after two minutes.
        """
        from headrace.deploy.kafka.broker import answers_within

        async with asyncio.timeout(120):
            in_a_row = 0
            while in_a_row < 25:
                in_a_row = in_a_row + 1 if await answers_within(self.bootstrap, 5) else 0
                await asyncio.sleep(0.2)

    @property
    def pid(self) -> int:
        """PID of the broker itself, which the child process has started."""
        import psutil

        open_ports = psutil.net_connections("tcp")
        (process,) = {
            each.pid for each in open_ports if each.laddr.port == self._broker.port and each.status == "LISTEN"
        }
        return int(process or 0)


@pytest.fixture(scope="module")
def running_kafka(tmp_path_factory: pytest.TempPathFactory, _kafka_starts_fast: None) -> Iterator[RunningKafka]:
    """A new broker with all topics, one per test module; a test that makes it unavailable must restore it."""
    broker = RunningKafka(tmp_path_factory.mktemp("kafka"))
    try:
        try:
            broker.start()
        except AssertionError as error:
            # Another program on this machine took a port after it was found to be free.
            if "Address already in use" not in str(error):
                raise
            broker.kill()
            broker = RunningKafka(tmp_path_factory.mktemp("kafka"))
            broker.start()
        yield broker
        from headrace.deploy.system.children import end_of

        assert broker.child.poll() is None, f"the broker died during the tests:\n{end_of(broker.child.log)}"
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def kafka(running_kafka: RunningKafka) -> str:
    """Bootstrap address of a fresh broker with all topics, one per test module."""
    return running_kafka.bootstrap


@pytest.fixture(scope="module")
def clickhouse(clickhouse_accounts: dict[str, str]) -> str:
    """URL, with the writer's password, of a fresh ClickHouse (the embedded engine behind its HTTP front), one per test
    module."""
    return clickhouse_accounts["writer"]


@pytest.fixture(scope="module")
def clickhouse_reader(clickhouse_accounts: dict[str, str]) -> str:
    """URL of the same ClickHouse, with the reader's password."""
    return clickhouse_accounts["reader"]


@pytest.fixture(scope="module")
def clickhouse_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """URL by account."""
    from headrace.deploy.system.children import Child, Command, end_of
    from headrace.deploy.system.notify import ReadySocket
    from headrace.deploy.system.ports import HOST, free_port

    folder, port = tmp_path_factory.mktemp("clickhouse"), free_port()
    with ReadySocket() as said:
        env = {**said.env, "HEADRACE_DATA": str(folder), "HEADRACE_CLICKHOUSE_PORT": str(port)}
        argv = (sys.executable, "-m", "headrace.deploy.cli", "worker", "clickhouse")
        child = Child(Command(argv, env), folder / "clickhouse.log")
        try:
            _wait_for(said.ready(), child, 60)
            secrets = folder / "clickhouse-secrets"
            yield {
                account: f"http://{account}:{(secrets / account).read_text()}@{HOST}:{port}"
                for account in ("reader", "writer")
            }
            assert child.poll() is None, f"ClickHouse died during the tests:\n{end_of(child.log)}"
        finally:
            child.stop()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["S3Server"]:
    """A fresh S3 server with one bucket, one per test module; the environment leads to it meanwhile."""
    from headrace.deploy.system.children import end_of
    from tests.s3proxy.server import S3Server

    server = S3Server(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        try:
            _wait_for(server.until_serves(), server.start(), 60)
            yield server
            assert server.child is not None, "a test left the S3 server stopped"
            assert server.child.poll() is None, f"the S3 server died during the tests:\n{end_of(server.log)}"
        finally:
            server.kill()


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running vLLM with our plugin on the shipped base model, one per session."""
    from headrace.deploy.configuration.settings import base_model_dir
    from headrace.deploy.processes.vllm_server import VllmConfig, engine_command
    from headrace.deploy.system.ports import HOST, free_port

    port, model_dir = free_port(), base_model_dir()
    argv, env = engine_command(VllmConfig(model_dir, host=HOST, port=port, cache_dir=CACHE / "vllm"))
    with running_vllm(argv, env, port, tmp_path_factory.mktemp("vllm")) as url:
        yield Engine(url, model_dir)


@contextmanager
def running_vllm(argv: Sequence[str], env: Mapping[str, str], port: int, folder: Path) -> Iterator[str]:
    """A vLLM server started by ``argv``, which must still run at the end; gives its address."""
    from headrace.deploy.processes.vllm_server import wait_until_ready
    from headrace.deploy.system.children import Child, Command, end_of
    from headrace.deploy.system.ports import HOST

    url = f"http://{HOST}:{port}"
    child = Child(Command(tuple(argv), dict(env), unset=("PYTHONDONTWRITEBYTECODE",)), folder / "vllm.log")
    try:
        _wait_for(wait_until_ready(url), child, 300)
        yield url
        assert child.poll() is None, f"vLLM died during the tests:\n{end_of(child.log)}"
    finally:
        child.kill()


def _wait_for(ready: Coroutine[None, None, None], child: "Child", timeout_s: float) -> None:
    """Wait for ``ready``; fails with the end of the child's log if the child ends first or it takes too long."""
    from headrace.deploy.system.children import end_of, wait_for_exit

    async def wait() -> None:
        serving, ended = asyncio.ensure_future(ready), asyncio.ensure_future(wait_for_exit(child))
        await asyncio.wait({serving, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        assert serving.done(), f"did not serve within {timeout_s} s:\n{end_of(child.log)}"
        serving.result()
        ended.cancel()

    asyncio.run(wait())
