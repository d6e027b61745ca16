"""The system under test: a broker, workers that are restarted when they end, and a proxy between each worker and the
broker.

Producers and checks reach the broker directly; a worker knows only its proxy's address, and the broker advertises that
address to it.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.system.children import Child, Command, wait_for_exit
from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS, TOPICS, TRAJECTORIES
from tests.chaos.plan import Plan
from tests.chaos.proxy import Proxy
from tests.chaos.slot import Role, Slot

CACHE = Path(os.environ.get("HEADRACE_CACHE", Path.home() / ".cache" / "headrace"))
"""Folder of Kafka's jars, which are downloaded there if missing."""

TAKEN_OVER = "took over"
"""Part of a fenced assembler's log message."""

_MARKERS_SKIPPED = "likely deleted already and hence can be skipped"
_RECOVERED = re.compile(r"^(\S+ \S+) .* events\[(\d+)\] continues at", re.MULTILINE)
_TRANSACTIONS_LOGGED = "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info"


class Rig:
    """Broker, proxies and workers. Made by :func:`running_rig`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        roles = _roles(plan)
        ports = _free_ports(2 + 2 * len(roles))
        self._broker = Broker(folder / "kafka", ports.pop(), ports.pop(), MAX_REQUEST_BYTES, heap_mb=512)
        self._broker_child: Child | None = None
        self._listeners = [(ports.pop(), ports.pop()) for _ in roles]  # the broker's, the proxy's
        self.broker_busy = False
        """Whether the broker has a fault."""
        self.slots = [self._slot(*each, *pair) for each, pair in zip(roles, self._listeners, strict=True)]
        """The workers; the last one is an assembler that joins and leaves."""

    @property
    def bootstrap(self) -> str:
        """The broker's address for producers and checks, without a proxy."""
        return self._broker.bootstrap

    @property
    def regulars(self) -> list[Slot]:
        """The workers that always run."""
        return self.slots[:-1]

    @property
    def spare(self) -> Slot:
        """The worker that joins and leaves."""
        return self.slots[-1]

    async def start_broker(self) -> None:
        """Start the broker on its data folder; returns once it answers."""
        command = await prepare_broker(self._broker, await kafka_jars(CACHE))
        options = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {_TRANSACTIONS_LOGGED}"
        command = replace(command, env={"JAVA_TOOL_OPTIONS": options.strip()})
        properties = self._broker.folder / "server.properties"
        properties.write_text(properties.read_text() + self._listener_settings())
        self._broker_child = Child(command, self.folder / "kafka.log")
        await wait_until_answers(self.bootstrap, 90)

    async def end_broker(self, *, at_once: bool) -> None:
        """Send SIGKILL or SIGTERM to the broker; returns once it has ended."""
        if self._broker_child is None:
            raise RuntimeError("the broker was not started")
        if at_once:
            self._broker_child.kill_command()
        else:
            self._broker_child.terminate()
        await wait_for_exit(self._broker_child)

    def owners(self) -> dict[int, str]:
        """Partition → the worker that recovered it last, by the workers' logs."""
        found: dict[int, tuple[str, str]] = {}
        for slot in (slot for slot in self.slots if slot.role is Role.ASSEMBLE):
            for time, partition in _RECOVERED.findall(slot.log_since(0)):
                found[int(partition)] = max(found.get(int(partition), ("", "")), (time, slot.name))
        return {partition: name for partition, (_, name) in found.items()}

    async def until_served(self, timeout_s: float = 60.0) -> None:
        """Return once every partition has an assembler; raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while len(self.owners()) < self.plan.partitions:  # noqa: ASYNC110 - a log file has no event to wait for
                await asyncio.sleep(0.1)

    @property
    def markers_skipped(self) -> int:
        """How often the broker took a partition for deleted and omitted a transaction's marker there.

        Kafka 4.3.0 does this if it is stopped between a commit or abort and its markers, and loads after its restart.
        """
        log = self.folder / "kafka.log"
        return log.read_text(errors="replace").count(_MARKERS_SKIPPED) if log.exists() else 0

    def kill_broker(self) -> None:
        """Kill the broker if it runs."""
        if self._broker_child is not None:
            self._broker_child.kill()

    def _slot(self, name: str, role: Role, broker_port: int, proxy_port: int) -> Slot:
        address = f"{HOST}:{proxy_port}"
        env = {"HEADRACE_KAFKA": address, "HEADRACE_DATA": str(self.folder / name), "OMP_NUM_THREADS": "1"}
        env |= {"HEADRACE_MEMBER": name} if self.plan.named else {}
        command = Command(
            _COMMANDS[role](self.plan), env, unset=("HEADRACE_MEMBER", "HEADRACE_OPTIONS", "HEADRACE_CONFIG")
        )
        return Slot(name, role, command, self.folder / f"{name}.log", Proxy(proxy_port, broker_port))

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
    """Broker, topics, proxies and workers; all are stopped at the end."""
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


def _roles(plan: Plan) -> list[tuple[str, Role]]:
    """Every worker's name and role."""
    assemblers = [(f"assembler-{number}", Role.ASSEMBLE) for number in range(plan.workers + 1)]
    others = [("decider-0", Role.DECIDE), ("decider-1", Role.DECIDE), ("trainer", Role.TRAIN)] if plan.whole else []
    return [*others, *assemblers]


def _headrace(worker: str, options: Mapping[str, object]) -> tuple[str, ...]:
    """The command of one of our own workers."""
    assignments = [f"{worker}.{name}={json.dumps(value)}" for name, value in options.items()]
    given = [word for assignment in assignments for word in ("--set", assignment)]
    return (sys.executable, "-m", "headrace.deploy.cli", "worker", worker, *given)


def _assembler(plan: Plan) -> tuple[str, ...]:
    return _headrace(
        "assemble",
        {
            "commit_interval_s": 0.1,
            "idle_timeout_s": plan.idle_timeout_s,
            "hole_grace_s": plan.hole_grace_s,
            "max_event_bytes": plan.max_event_bytes,
        },
    )


def _decider(plan: Plan) -> tuple[str, ...]:
    return _headrace("workers", {"group_timeout_s": plan.group_timeout_s})


def _trainer(plan: Plan) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.chaos.trainer")


_COMMANDS: Mapping[Role, Callable[[Plan], tuple[str, ...]]] = {
    Role.ASSEMBLE: _assembler,
    Role.DECIDE: _decider,
    Role.TRAIN: _trainer,
}


def _free_ports(number: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < number:
        ports.append(free_port(frozenset(ports)))
    return ports
