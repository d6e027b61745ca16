"""The gateway's process: wires the parts, listens, ends what is idle, and stops without losing an event."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from headrace.agents.counters import SdkCounters
from headrace.agents.gateway.answer_parsers import AnswerParsers, ParserSettings
from headrace.agents.gateway.call_metrics import CallMetrics, observe_gateway
from headrace.agents.gateway.calls import Calls
from headrace.agents.gateway.capture import Capture
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.engine_choice import EngineLimits
from headrace.agents.gateway.engine_errors import EngineError
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.engines import Engine
from headrace.agents.gateway.journal import Journal
from headrace.agents.gateway.limits import Limiter, Rate, Unit
from headrace.agents.gateway.native.available import NOT_BUILT, SPEEDUPS
from headrace.agents.gateway.nodes import NodeStore
from headrace.agents.gateway.prompts import Prompts
from headrace.agents.gateway.recorder import Recorder
from headrace.agents.gateway.regular_file import read_regular
from headrace.agents.gateway.restore.fold import RestoreFold
from headrace.agents.gateway.restore.instance import Instance, take_instance
from headrace.agents.gateway.restore.start import Places, restore
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.server import GatewayServer
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.gateway.tenants import Tenants, follow_keys, read_tenants
from headrace.agents.server_log import SERVER_LOG
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import cluster_fingerprint
from headrace.schemas.events import GatewayStatsReported
from headrace.schemas.ids import uuid7
from headrace.schemas.operator_error import OperatorError

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
"""Time between two searches for idle sessions and refused events, in seconds."""

STOP_S: Final = 10.0
"""How long calls in flight may last once the gateway stops, in seconds."""

COLLECT_AFTER: Final = 20_000
"""Objects after which Python looks for cycles among the youngest."""

SECRET_BYTES: Final = 32


class GatewayUnusable(OperatorError):
    """The gateway cannot start with its settings."""


async def run_gateway(config: GatewayConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until ``stop``; ``ready`` is called once the gateway listens.

    Raises :class:`OperatorError` with a sentence for an operator.
    """
    tenants = read_tenants(config.keys)
    sealer = Sealer([signing_secret(config.folder)])
    instance = take_instance(config.folder)
    try:
        await _run(config, tenants, sealer, instance, stop, ready)
    finally:
        instance.release()


async def _run(
    config: GatewayConfig,
    tenants: Tenants,
    sealer: Sealer,
    instance: Instance,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> None:
    if SPEEDUPS is None:
        log.warning("%s", NOT_BUILT)
    parsers = _parsers(config)
    nodes, sessions, metrics = NodeStore(config.node_bytes), SessionStore(config.max_sessions), CallMetrics()
    capture = Capture(sealer, nodes, sessions, uuid7)
    counters = SdkCounters()
    cluster = cluster_fingerprint(*sorted(each.strip() for each in config.bootstrap.split(",")))
    spool = Spool(config.folder / "spool", config.spool_bytes, cluster, lambda path, loss: journal.lost(path, loss))
    journal = Journal(
        spool,
        config.bootstrap,
        {},
        counters,
        source=instance.source,
        when_full=config.when_full,
        new_id=uuid7,
        sealer=sealer,
    )
    recorder = Recorder(journal, _now_ms)
    engines = [Engine(url, config.engine_key, read_timeout_s=config.engine_timeout_s) for url in config.engines]
    async with EnginePool(engines, EngineLimits(in_flight=config.engine_calls)) as pool, asyncio.TaskGroup() as tasks:
        prompts = Prompts(
            pool,
            aliases=config.model_aliases,
            history=config.history,
            parses_tools=config.tool_parser is not None,
        )
        limiter, clock = _limiter(config), asyncio.get_running_loop().time
        calls = Calls(
            capture,
            prompts,
            pool,
            parsers,
            recorder,
            metrics,
            isolates_tenants=not tenants.is_open,
            now_ms=_now_ms,
            charge=lambda tenant, tokens: limiter.charge(tenant, Unit.TOKENS, tokens, clock()),
        )
        server = GatewayServer(
            config, calls, capture, prompts, recorder, tenants, sealer, limiter, metrics, now_ms=_now_ms
        )
        observe_gateway(
            lambda: {
                "headrace.gateway.calls.open": calls.in_flight,
                "headrace.gateway.sessions": len(sessions),
                "headrace.gateway.nodes": len(nodes),
                "headrace.gateway.nodes.memory": nodes.bytes,
                "headrace.gateway.journal.unacknowledged": journal.unacknowledged,
                "headrace.gateway.journal.refused": recorder.waiting,
                "headrace.gateway.journal.holes": journal.holes + recorder.holes,
            }
        )
        journal.start(tasks)
        try:
            if config.restore_s:
                fold = RestoreFold(sealer, source=instance.source, max_bytes=config.node_bytes)
                places = Places(spool.path, cluster, config.bootstrap)
                await restore(fold, places, nodes, sessions, idle_s=config.idle_s, within_s=config.restore_s)
                _end_idle(config, capture, recorder)  # before any request continues them
            async with _listening(server.app(), config):
                await _look_at_engines(prompts)
                _collect_rarely()
                ready()
                sweeping = tasks.create_task(_sweep(config, capture, recorder, counters))
                reporting = tasks.create_task(
                    _report(config, journal, lambda: stats_of(metrics, calls, pool, sessions, journal, recorder))
                )
                following = [tasks.create_task(follow_keys(config.keys, tenants))] if config.keys else []
                await stop.wait()
                for each in (sweeping, reporting, *following):
                    each.cancel()
        finally:
            await prompts.close()
            await recorder.drain()
            await recorder.retry()
            await journal.close(config.flush_s)
            counters.log_counts(all_reasons=True)


def signing_secret(folder: Path) -> bytes:
    """Return the secret that signs ids, keys and tokens, from a private file that is made at the first start.

    Gateways behind one load balancer need the same file. Raises :class:`GatewayUnusable`.
    """
    path = folder / "secret"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            # Under another name first: another gateway that starts now sees the whole secret or none.
            new = folder / f".secret-{os.getpid()}-{secrets.token_hex(4)}"
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(new, path)
            finally:
                new.unlink()
        found = read_regular(path, SECRET_BYTES)
    except OSError as error:
        remedy = (
            f"It must have {SECRET_BYTES} bytes: restore it, or remove it"
            if os.path.lexists(path)
            else "Make the folder writable for this process, or set another data folder (--data, HEADRACE_DATA)"
        )
        raise GatewayUnusable(f"the gateway's secret in {path} cannot be read or made: {error}. {remedy}") from error
    if len(found) < SECRET_BYTES:
        raise GatewayUnusable(f"{path} has {len(found)} bytes instead of {SECRET_BYTES}: restore it, or remove it")
    return found


def _parsers(config: GatewayConfig) -> AnswerParsers:
    settings = ParserSettings(config.model_path or "", config.tool_parser, config.reasoning_parser)
    try:
        return AnswerParsers(settings)
    except ModuleNotFoundError as error:
        raise GatewayUnusable(
            f"tool_parser and reasoning_parser need {error.name}: install vLLM beside the gateway (its CPU build will "
            "do), or unset them"
        ) from error
    except (TypeError, ValueError, KeyError, OSError) as error:
        raise GatewayUnusable(f"vLLM's parsers cannot be loaded for {config.model_path}: {error}") from error


def _limiter(config: GatewayConfig) -> Limiter:
    seconds = ((Unit.REQUESTS, config.requests_per_s, 10), (Unit.TOKENS, config.tokens_per_s, 60),
               (Unit.BYTES, config.bytes_per_s, 10))  # fmt: skip
    return Limiter({unit: Rate(rate, rate * burst) for unit, rate, burst in seconds if rate is not None})


@contextlib.asynccontextmanager
async def _listening(app: web.Application, config: GatewayConfig) -> AsyncIterator[None]:
    # A client that leaves cancels its handler, which frees the engine.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_S, logger=SERVER_LOG)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            raise GatewayUnusable(
                f"the gateway cannot listen on {config.host}:{config.port}: {error.strerror}. Choose another port "
                "(HEADRACE_GATEWAY_PORT)"
            ) from error
        log.info("gateway listens on http://%s:%d", config.host, config.port)
        yield
    finally:
        await runner.cleanup()


async def _look_at_engines(prompts: Prompts) -> None:
    """Find out what the engines serve; they may also come later."""
    try:
        for model in await prompts.models():
            log.info("serves %s, %d tokens", model.name, model.max_tokens)
    except EngineError as error:
        log.warning("no engine answers yet: %s", error)


async def _sweep(config: GatewayConfig, capture: Capture, recorder: Recorder, counters: SdkCounters) -> None:
    """End idle sessions, and record what was refused, again and again."""
    while True:
        await asyncio.sleep(SWEEP_S)
        _end_idle(config, capture, recorder)
        await recorder.retry()
        counters.log_counts()


async def _report(config: GatewayConfig, journal: Journal, stats: Callable[[], GatewayStatsReported]) -> None:
    """Publish the statistics again and again, also if nothing has changed: rates are differences of two records."""
    while True:
        await asyncio.sleep(config.stats_interval_s)
        await journal.publish(stats(), _now_ms())


def stats_of(
    metrics: CallMetrics, calls: Calls, pool: EnginePool, sessions: SessionStore, journal: Journal, recorder: Recorder
) -> GatewayStatsReported:
    """Returns what the gateway has counted, and what is open in it."""
    return GatewayStatsReported(
        calls=metrics.calls,
        errors={str(kind): count for kind, count in sorted(metrics.errors.items())},
        left=metrics.clients_left,
        open_calls=calls.in_flight,
        waiting=pool.waiting,
        sessions=len(sessions),
        engines=pool.in_flight(),
        unacknowledged=journal.unacknowledged + recorder.waiting,
        spooled=journal.spooled,
        holes=journal.holes + recorder.holes,
    )


def _end_idle(config: GatewayConfig, capture: Capture, recorder: Recorder) -> None:
    for session, events in capture.end_idle(_now_ms() - int(config.idle_s * 1000)):
        recorder.record(session, events)


def _collect_rarely() -> None:
    """Configure Python's garbage collector: it would traverse what stays loaded, and of calls almost nothing is part of
    a cycle."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
