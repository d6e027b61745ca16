"""The real thing to break: a broker, workers that are started again when they end, and a proxy between them for each.

Producers and whoever checks reach the broker directly; a worker knows only its proxy's address, and the broker
advertises that address to it.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.deploy.children import Child, Command, end_of, exit_of
from headrace.deploy.kafka import Broker, kafka_jars, prepare_broker, wait_until_answers
from headrace.deploy.ports import HOST, free_port
from headrace.schemas.log import MAX_REQUEST_BYTES, create_topics
from headrace.schemas.topics import EVENTS, TOPICS, TRAJECTORIES
from tests.chaos.plan import Plan
from tests.chaos.proxy import Proxy

CACHE = Path(os.environ.get("HEADRACE_CACHE", Path.home() / ".cache" / "headrace"))
"""Where Kafka's jars are, or come to be."""

TAKEN_OVER = "took over"
"""What a fenced assembler says."""

_RECOVERED = re.compile(r"^(\S+ \S+) .* events\[(\d+)\] goes on at", re.MULTILINE)
_TRANSACTIONS_LOGGED = "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info"
_START_AGAIN_S = 0.3
_TERM_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a worker process."""

    slot: str
    """Which."""
    status: int
    """128 + n for signal n."""
    words: str
    """Its last line."""


class Slot:
    """A place for one worker process, kept filled while it is wanted."""

    def __init__(self, name: str, command: Command, log: Path, proxy: Proxy) -> None:
        self.name = name
        self.log = log
        self.proxy = proxy
        self.exits: list[Exit] = []
        """Every end so far."""
        self.busy = False
        """Whether a fault is upon it."""
        self._command = command
        self._wanted = asyncio.Event()
        self._child: Child | None = None

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._child is not None and self._child.poll() is None

    @property
    def log_size(self) -> int:
        """Bytes in its log."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_since(self, size: int) -> str:
        """What its log said after its first ``size`` bytes."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(size)
            return file.read().decode(errors="replace")

    async def keep(self) -> None:
        """Start the process whenever it is wanted and there is none; for ever."""
        try:
            while True:
                await self._wanted.wait()
                self._child = Child(self._command, self.log)
                status = await exit_of(self._child)
                self.exits.append(Exit(self.name, status, (end_of(self.log, lines=1) or "").strip()))
                await asyncio.sleep(_START_AGAIN_S)
        finally:
            if self._child is not None:
                self._child.kill()

    def want(self) -> None:
        """Start it, and again whenever it ends."""
        self._wanted.set()

    def leave(self) -> None:
        """Do not start it again."""
        self._wanted.clear()

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill_command()

    async def terminate(self) -> None:
        """SIGTERM, and wait for the end; SIGKILL where it does not come."""
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            await asyncio.wait_for(exit_of(child), _TERM_GRACE_S)
        except TimeoutError:
            child.kill_command()

    def freeze(self) -> bool:
        """SIGSTOP; whether there was a process."""
        return self._signal(signal.SIGSTOP)

    def thaw(self) -> bool:
        """SIGCONT; whether there was a process."""
        return self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> bool:
        if not self.runs or self._child is None or not self._child.pid:
            return False
        os.kill(self._child.pid, number)
        return True


class Rig:
    """Broker, proxies and workers. Made by :func:`running_rig`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        ports = _free_ports(2 + 2 * (plan.workers + 1))
        self._broker = Broker(folder / "kafka", ports.pop(), ports.pop(), MAX_REQUEST_BYTES, heap_mb=512)
        self._broker_child: Child | None = None
        self._listeners = [(ports.pop(), ports.pop()) for _ in range(plan.workers + 1)]  # the broker's, the proxy's
        self.broker_busy = False
        """Whether a fault is upon the broker."""
        self.slots = [self._slot(number, *pair) for number, pair in enumerate(self._listeners)]
        """The workers; the last one is the one that comes and goes."""

    @property
    def bootstrap(self) -> str:
        """The broker's address for producers and for whoever checks: not through a proxy."""
        return self._broker.bootstrap

    @property
    def regulars(self) -> list[Slot]:
        """The workers that are always there."""
        return self.slots[:-1]

    @property
    def spare(self) -> Slot:
        """The worker that comes and goes."""
        return self.slots[-1]

    async def start_broker(self) -> None:
        """Start the broker on what is in its folder; returns once it answers."""
        command = await prepare_broker(self._broker, await kafka_jars(CACHE))
        command = replace(command, env={"JAVA_TOOL_OPTIONS": _TRANSACTIONS_LOGGED})
        properties = self._broker.folder / "server.properties"
        properties.write_text(properties.read_text() + self._listener_settings())
        self._broker_child = Child(command, self.folder / "kafka.log")
        await wait_until_answers(self.bootstrap, 90)

    async def end_broker(self, *, at_once: bool) -> None:
        """SIGKILL or SIGTERM of the broker; returns once it is gone."""
        if self._broker_child is None:
            raise RuntimeError("the broker was not started")
        if at_once:
            self._broker_child.kill_command()
        else:
            self._broker_child.terminate()
        await exit_of(self._broker_child)

    def owners(self) -> dict[int, str]:
        """Partition → the worker that recovered it last, by the workers' logs."""
        found: dict[int, tuple[str, str]] = {}
        for slot in self.slots:
            for time, partition in _RECOVERED.findall(slot.log_since(0)):
                found[int(partition)] = max(found.get(int(partition), ("", "")), (time, slot.name))
        return {partition: name for partition, (_, name) in found.items()}

    async def until_served(self, timeout_s: float = 60.0) -> None:
        """Return once every partition has an assembler; raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while len(self.owners()) < self.plan.partitions:  # noqa: ASYNC110 - a log file has no event to wait for
                await asyncio.sleep(0.1)

    def kill_broker(self) -> None:
        """Leave nothing running."""
        if self._broker_child is not None:
            self._broker_child.kill()

    def _slot(self, number: int, broker_port: int, proxy_port: int) -> Slot:
        name = f"worker-{number}"
        address = f"{HOST}:{proxy_port}"
        env = {"HEADRACE_KAFKA": address, "HEADRACE_DATA": str(self.folder / name), "OMP_NUM_THREADS": "1"}
        env |= {"HEADRACE_MEMBER": name} if self.plan.named else {}
        command = Command(_assembler(self.plan), env, unset=("HEADRACE_MEMBER", "HEADRACE_OPTIONS", "HEADRACE_CONFIG"))
        return Slot(name, command, self.folder / f"{name}.log", Proxy(proxy_port, broker_port))

    def _listener_settings(self) -> str:
        """A listener for each proxy, which the broker advertises under the proxy's address."""
        names = [f"PROXY{number}" for number in range(len(self._listeners))]
        own = f"PLAINTEXT://{self._broker.bootstrap}"
        controller = f"CONTROLLER://{HOST}:{self._broker.controller_port}"
        theirs = dict(zip(names, self._listeners, strict=True))
        settings = {
            "listeners": ",".join(
                (own, controller, *(f"{name}://{HOST}:{port}" for name, (port, _) in theirs.items()))
            ),
            "advertised.listeners": ",".join((own, *(f"{name}://{HOST}:{port}" for name, (_, port) in theirs.items()))),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names)
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@asynccontextmanager
async def running_rig(plan: Plan, folder: Path, say: Callable[[str], None]) -> AsyncIterator[Rig]:
    """Broker, topics, proxies and workers; nothing is left when it ends."""
    rig = Rig(plan, folder)
    keepers: list[asyncio.Task[None]] = []
    try:
        say("starting the broker")
        await rig.start_broker()
        await create_topics(
            rig.bootstrap,
            [
                replace(topic, partitions=plan.partitions) if topic in (EVENTS, TRAJECTORIES) else topic
                for topic in TOPICS
            ],
        )
        for slot in rig.slots:
            await slot.proxy.listen()
            keepers.append(asyncio.create_task(slot.keep()))
        for slot in rig.regulars:
            slot.want()
        await rig.until_served()
        yield rig
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for slot in rig.slots:
            await slot.proxy.close()
        rig.kill_broker()


def _assembler(plan: Plan) -> tuple[str, ...]:
    options: Mapping[str, object] = {
        "commit_interval_s": 0.1,
        "idle_timeout_s": plan.idle_timeout_s,
        "hole_grace_s": plan.hole_grace_s,
        "max_event_bytes": plan.max_event_bytes,
    }
    assignments = [f"assemble.{name}={json.dumps(value)}" for name, value in options.items()]
    given = [word for assignment in assignments for word in ("--set", assignment)]
    return (sys.executable, "-m", "headrace.deploy.cli", "worker", "assemble", *given)


def _free_ports(number: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < number:
        ports.append(free_port(frozenset(ports)))
    return ports
