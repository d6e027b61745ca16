"""An archive of Kafka's loaded classes, with which a broker starts in half the processor time."""

import asyncio
import fcntl
import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.kafka.java import find_java
from headrace.deploy.system.children import Child
from headrace.deploy.system.ports import free_ports
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.kafka.topic_creation import create_topics


def kafka_classes(cache: Path) -> Path:
    """Returns the archive (JEP 350) for this machine's Java and Kafka's jars, made in ``cache`` the first time by a
    broker that starts and stops; safe to call from several processes.
    """
    libs = asyncio.run(kafka_jars(cache))
    key = hashlib.sha256(f"{find_java().about}\n{libs}".encode()).hexdigest()[:16]
    archive = cache / f"kafka-classes-{key}.jsa"
    with (cache / "kafka-classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                asyncio.run(_run_once(Path(folder), libs)).replace(archive)
    return archive


async def _run_once(folder: Path, libs: Path) -> Path:
    """Starts a broker with all topics, and stops it; returns the archive of the classes that it had loaded."""
    archive = folder / "classes.jsa"
    broker = Broker(folder / "data", *free_ports(2), MAX_REQUEST_BYTES, heap_mb=384)
    command = await prepare_broker(broker, libs)
    program, *arguments = command.argv
    child = Child(replace(command, argv=(program, f"-XX:ArchiveClassesAtExit={archive}", *arguments)), folder / "log")
    try:
        await wait_until_answers(broker.bootstrap, 90)
        await create_topics(broker.bootstrap)
    finally:
        child.stop(grace_s=60)
    if not archive.exists():
        raise RuntimeError(f"the broker has not written its classes:\n{child.last_output()}")
    return archive
