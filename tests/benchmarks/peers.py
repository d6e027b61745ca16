"""The contenders: ours, the peers, and the bare client loops as upper limits. Each builds its dependencies once.

Kafka Streams is compiled by Maven, Quix Streams is installed by uv into a separate environment; both are kept in the
cache folder under a name derived from their sources and versions.
"""

import os
import shutil
import sys
from functools import cache, partial
from pathlib import Path

from headrace.deploy.kafka.java import find_java
from headrace.deploy.system.children import Command
from tests.benchmarks.contender import Contender, Start, worker
from tests.built import by_maven, publish, run
from tests.conftest import CACHE

HERE = Path(__file__).parent
PROJECT = HERE / "kafka_streams"
QUIX = "quixstreams==3.28.0"
COMMIT_S = 0.15
"""Seconds between two commits of Quix, whose default is 5 s; as in the Kafka Streams topology."""


def assembler(start: Start) -> Command:
    """Our assembler with its default settings."""
    return worker("assemble", start, {"group": start.group, "shares_output": True})


def kafka_streams(start: Start, *, store: str = "memory", threads: int = 1) -> Command:
    """The topology in ``kafka_streams/``."""
    built = kafka_streams_classes()
    logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    argv = (find_java().program, "-Xmx2g", logging, "-cp", f"{built / 'classes'}{os.pathsep}{built / 'libs'}{os.sep}*")
    arguments = (start.bootstrap, start.group, start.output, store, str(threads), str(start.folder))
    return Command((*argv, "headrace.benchmarks.Assembly", *arguments))


def quix(start: Start, *, form: str = "keys") -> Command:
    """The program in ``quix_assembly.py``."""
    arguments = (start.bootstrap, start.group, start.output, form, str(COMMIT_S), str(start.folder))
    return Command((str(quix_python()), str(HERE / "quix_assembly.py"), *arguments))


def bare_aiokafka(start: Start) -> Command:
    """The asyncio client, which discards its records."""
    return Command((sys.executable, str(HERE / "bare_aiokafka.py"), start.bootstrap, start.group))


def bare_librdkafka(start: Start) -> Command:
    """The C client that Quix uses, which discards its records."""
    return Command((sys.executable, str(HERE / "bare_librdkafka.py"), start.bootstrap, start.group))


ONE = 0.2
"""Share of the load for one process or thread. Four are timed up to four fifths: all have joined within the first third
of that, and all still have work.
"""

CONTENDERS = (
    Contender("headrace", "headrace, one process", assembler, ours=True, share=ONE),
    Contender("headrace-2", "headrace, two processes", assembler, processes=2, ours=True, share=2 * ONE),
    Contender("headrace-4", "headrace, four processes", assembler, processes=4, ours=True, share=4 * ONE, counted=True),
    Contender("kafka-streams", "Kafka Streams, in-memory store, one thread", kafka_streams, share=ONE),
    Contender(
        "kafka-streams-4",
        "Kafka Streams, in-memory store, four threads",
        partial(kafka_streams, threads=4),
        share=4 * ONE,
        counted=True,
    ),
    Contender(
        "kafka-streams-rocksdb",
        "Kafka Streams, RocksDB, one thread",
        partial(kafka_streams, store="rocksdb"),
        share=ONE,
    ),
    Contender("quix", "Quix Streams, one state key an event", quix, share=0.3 * ONE),
    Contender("quix-list", "Quix Streams, a list in its state", partial(quix, form="list"), share=0.2 * ONE),
    Contender(
        "quix-json", "Quix Streams, the same, events parsed as it does", partial(quix, form="json"), share=0.1 * ONE
    ),
    Contender("bare-aiokafka", "bare aiokafka loop, nothing parsed", bare_aiokafka, writes=False, share=ONE),
    Contender("bare-librdkafka", "bare confluent-kafka loop, nothing parsed", bare_librdkafka, writes=False, share=ONE),
)


@cache
def kafka_streams_classes() -> Path:
    """A folder with ``classes`` and ``libs``, compiled by Maven the first time; raises ``RuntimeError``."""
    return by_maven(PROJECT, "kafka-streams", "compile")


@cache
def quix_python() -> Path:
    """The interpreter of an environment with Quix Streams; raises ``RuntimeError``.

    It is never our environment, because its pinned versions differ.
    """
    built = CACHE / f"{QUIX.replace('==', '-')}-python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = Path("bin", "python")
    if not (built / interpreter).exists():
        uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
        if uv is None:
            raise RuntimeError("Quix Streams is installed by uv, and there is no `uv` beside Python or on the PATH")
        making = built.with_name(f"{built.name}.{os.getpid()}")
        run(uv, "venv", "-q", "--relocatable", "--python", sys.executable, str(making))
        run(uv, "pip", "install", "-q", "--python", str(making / interpreter), QUIX)
        publish(making, built)
    return built / interpreter
