"""The parts of the local stack, as a value: what each needs, how it is started, how it is known to serve."""

import logging
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.kafka.broker import Broker, kafka_jars, prepare_broker, wait_until_answers
from headrace.deploy.processes.part_options import check_options, vllm_command
from headrace.deploy.processes.telemetry import metrics_url
from headrace.deploy.system.children import Command
from headrace.deploy.system.ports import HOST, remembered_ports

_EXTERNAL_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)

Say: TypeAlias = Callable[[str], None]
"""Shows a person what a part is busy with."""


@dataclass(frozen=True, slots=True)
class Part:
    """A process of the stack."""

    name: str
    """Its name in settings, status and logs."""
    about: str
    """What it does, in a few words."""
    command: Callable[[Settings, Say], Awaitable[Command]]
    """Prepares what it needs on disk and gives the program to start; says what takes long."""
    needs: tuple[str, ...] = ()
    """Parts that must serve before it starts."""
    answers: Callable[[Settings], Awaitable[None]] | None = None
    """Returns once it serves; ``None``: it says so itself, by sd_notify."""
    ports: tuple[str, ...] = ()
    """Settings that hold the ports it listens on."""
    url: str | None = None
    """Its address, ``{port}`` being the first of ``ports``; ``None`` where nobody connects to it."""
    external: Callable[[Settings], Awaitable[None]] | None = None
    """Checks the address in the setting called like the part, which replaces it; ``None``: nothing replaces it."""
    wanted: Callable[[Settings], bool] = lambda settings: True
    """Whether the settings call for it."""
    metrics: bool = False
    """Whether it answers Prometheus, on a port of its own in the setting ``metrics_ports``."""
    memory_mb: int = 150
    """Resident memory to reckon with, in MiB."""


def replaced(part: Part, settings: Settings) -> bool:
    """Whether the settings hold an address to use in the place of ``part``."""
    return part.external is not None and getattr(settings, part.name) is not None


def select(
    parts: tuple[Part, ...], settings: Settings, without: Collection[str]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Parts to start, and parts that an address replaces.

    Raises :class:`StackError` for an unknown name, in ``without`` or in the settings' options, for a part whose needs
    are left out, for an option that is wrong, and where there is no model: all that is known before a start.
    """
    names = {part.name for part in parts}
    for where, named in (("--without", without), ("--set (HEADRACE_OPTIONS)", settings.options)):
        if unknown := set(named) - names:
            raise StackError(
                f"{where} names {', '.join(sorted(unknown))}, which is no part: the parts are "
                f"{', '.join(part.name for part in parts)}."
            )
    external = tuple(part for part in parts if replaced(part, settings))
    there = names - set(without) | {part.name for part in external}
    started = tuple(part for part in parts if part.name in there and part not in external and part.wanted(settings))
    for part in started:
        for need in part.needs:
            if need not in there:
                also = ",".join([*sorted(without), part.name])
                raise StackError(
                    f"{part.name} needs {need}: leave it out too (--without {also}), or set {PREFIX}{need.upper()} to "
                    "the address of one that you have."
                )
    check_options(settings, {part.name for part in started})
    if {"vllm", "trainer"} & {part.name for part in started}:
        _check_model(settings)
    return started, external


def _check_model(settings: Settings) -> None:
    if not (settings.model_dir / "config.json").is_file():
        raise StackError(
            f"{settings.model_dir} ({PREFIX}MODEL_DIR) is not a Hugging Face model directory: it has no config.json. "
            "`headrace base-model` makes one."
        )


def resolve(settings: Settings, started: Collection[Part]) -> Settings:
    """``settings`` with a port for every part in ``started`` and the addresses that follow from them."""
    free = tuple(name for part in started for name in part.ports if getattr(settings, name) is None)
    unwatched = [part.name for part in started if part.metrics and part.name not in settings.metrics_ports]
    ports = remembered_ports(settings.data / "ports.json", (*free, *map(_metrics_port, unwatched)))
    metrics_ports = {**settings.metrics_ports, **{name: ports[_metrics_port(name)] for name in unwatched}}
    chosen = {name: getattr(settings, name) or ports[name] for part in started for name in part.ports}
    addresses: dict[str, str | Path] = {
        part.name: part.url.format(port=chosen[part.ports[0]]) for part in started if part.external and part.url
    }
    if any(part.name == "clickhouse" for part in started):
        addresses["clickhouse_secrets"] = settings.secrets_of_embedded
    return settings.model_copy(
        update={**chosen, **addresses, "metrics_ports": metrics_ports, "member": settings.member or "local"}
    )


def address(part: Part, settings: Settings) -> str | None:
    """Where ``part`` listens, by resolved ``settings``."""
    if replaced(part, settings):
        return str(getattr(settings, part.name))
    return part.url.format(port=getattr(settings, part.ports[0])) if part.url else None


def metrics_address(part: Part, settings: Settings) -> str | None:
    """Where ``part`` answers Prometheus, by resolved ``settings``."""
    return metrics_url(settings.metrics_ports[part.name]) if part.metrics else None


def _metrics_port(name: str) -> str:
    """What the port of a part's metrics is remembered as."""
    return f"{name}_metrics_port"


def _worker(name: str) -> Callable[[Settings, Say], Awaitable[Command]]:
    async def command(settings: Settings, say: Say) -> Command:
        argv = (sys.executable, "-m", "headrace.deploy.cli", "worker", name)
        return Command(argv, settings.environment())

    return command


async def _kafka(settings: Settings, say: Say) -> Command:
    from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES

    assert settings.kafka_port is not None  # resolve() chose one.
    assert settings.kafka_controller_port is not None
    broker = Broker(
        folder=settings.data / "kafka",
        port=settings.kafka_port,
        controller_port=settings.kafka_controller_port,
        max_message_bytes=MAX_REQUEST_BYTES,
        heap_mb=settings.kafka_heap_mb,
    )
    return await prepare_broker(broker, await kafka_jars(settings.cache, say))


async def _kafka_answers(settings: Settings) -> None:
    assert settings.kafka is not None
    from headrace.schemas.kafka.topic_clock import set_clocks

    await wait_until_answers(settings.kafka, settings.start_timeout_s)
    await _create_topics(settings.kafka)
    await set_clocks(settings.kafka)  # of data that an older version made


async def _kafka_external(settings: Settings) -> None:
    assert settings.kafka is not None
    await wait_until_answers(settings.kafka)
    await _create_topics(settings.kafka)
    await _warn_of_short_memory(settings.kafka)


async def _warn_of_short_memory(bootstrap: str) -> None:
    """Say where somebody's Kafka forgets committed offsets before the events that they are of."""
    from aiokafka.errors import KafkaError

    from headrace.schemas.kafka.topic_clock import OFFSETS_RETENTION, offsets_retention_minutes
    from headrace.schemas.topics import EVENTS

    wanted = EVENTS.retention_ms // 60_000
    try:
        found = await offsets_retention_minutes(bootstrap)
    except KafkaError as error:
        _log.warning("%s of the Kafka at %s could not be read: %s", OFFSETS_RETENTION, bootstrap, error)
        return
    if found is not None and found < wanted:
        _log.warning(
            "the Kafka at %s forgets the offsets of a process that is stopped for %.3g days (%s=%d), and keeps events "
            "for %.3g: a stack that slept for longer must then read all of them again. Set %s=%d in its "
            "server.properties.",
            bootstrap, found / 1440, OFFSETS_RETENTION, found, wanted / 1440, OFFSETS_RETENTION, wanted,
        )  # fmt: skip


async def _create_topics(bootstrap: str) -> None:
    from aiokafka.errors import KafkaError

    from headrace.schemas.kafka.topic_creation import create_topics

    try:
        await create_topics(bootstrap)
    except KafkaError as error:
        raise StackError(
            f"The Kafka at {bootstrap} ({PREFIX}KAFKA) did not let the topics be created: {error}. Create them by hand "
            "as `headrace topics` lists them."
        ) from error


async def _vllm(settings: Settings, say: Say) -> Command:
    assert settings.vllm_port is not None
    say("loads; a minute the first time on two cores, half of it later")
    argv, env = vllm_command(settings)
    return Command(tuple(argv), env, unset=("PYTHONDONTWRITEBYTECODE",))


async def _vllm_answers(settings: Settings) -> None:
    from headrace.deploy.processes.vllm_server import wait_until_ready

    assert settings.vllm is not None
    await wait_until_ready(settings.vllm, settings.start_timeout_s)


def _http_external(name: str, path: str) -> Callable[[Settings], Awaitable[None]]:
    async def check(settings: Settings) -> None:
        import httpx

        url = str(getattr(settings, name)).rstrip("/")
        try:
            async with httpx.AsyncClient(timeout=_EXTERNAL_TIMEOUT_S) as client:
                (await client.get(url + path)).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StackError(
                f"{name} at {url} ({PREFIX}{name.upper()}) did not answer {path}: {error or type(error).__name__}. "
                "Check the address and that it runs, or unset the setting to have one started."
            ) from error

    return check


PARTS: tuple[Part, ...] = (
    Part(
        "kafka",
        "the log",
        _kafka,
        answers=_kafka_answers,
        ports=("kafka_port", "kafka_controller_port"),
        url=HOST + ":{port}",
        external=_kafka_external,
        memory_mb=600,
    ),
    Part(
        "clickhouse",
        "tables for people",
        _worker("clickhouse"),
        ports=("clickhouse_port",),
        url=f"http://{HOST}:{{port}}",
        external=_http_external("clickhouse", "/ping"),
        memory_mb=600,
    ),
    Part(
        "vllm",
        "the inference engine",
        _vllm,
        answers=_vllm_answers,
        ports=("vllm_port",),
        url=f"http://{HOST}:{{port}}",
        external=_http_external("vllm", "/health"),
        memory_mb=2000,
    ),
    Part("assemble", "events → trajectories", _worker("assemble"), needs=("kafka",), metrics=True),
    Part("workers", "score and group", _worker("workers"), needs=("kafka",), metrics=True, memory_mb=200),
    Part(
        "sink", "every topic → ClickHouse", _worker("sink"), needs=("kafka", "clickhouse"), metrics=True, memory_mb=300
    ),
    Part(
        "traces",
        "every topic → an OpenTelemetry collector",
        _worker("traces"),
        needs=("kafka",),
        wanted=lambda settings: settings.otlp is not None,
    ),
    Part("trainer", "training groups → weights", _worker("trainer"), needs=("kafka",), metrics=True, memory_mb=900),
    Part("follower", "weights → vLLM", _worker("follower"), needs=("kafka", "vllm"), memory_mb=250),
    Part(
        "dashboard",
        "a page to watch it",
        _worker("dashboard"),
        needs=("clickhouse",),
        ports=("dashboard_port",),
        url=f"http://{HOST}:{{port}}",
    ),
)
"""The whole stack, upstream first."""
