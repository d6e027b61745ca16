"""Downloads Kafka's jars once into the cache: by Maven, or where it or a JDK is missing by the package jgo.

Both resolve two artifacts and their dependencies: 46 jars, 44 MB. ``deploy/install/kafka-jars.txt`` has their digests.
jgo only logs that a file is damaged, so its jars are compared with them.
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.java import JAVA_ENVIRONMENT, find_java
from headrace.deploy.system.children import Command, end_of, run_to_end

KAFKA_VERSION = "4.3.0"
ARTIFACTS = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
"""Group, name and version of each artifact."""

DIGESTS = Path(__file__).parents[1] / "install" / "kafka-jars.txt"
"""SHA-256 and name of each jar, in the format of ``sha256sum``."""

_JGO = (sys.executable, "-m", "headrace.deploy.kafka.jgo_download")
_SIZE_MB = 44
_REPORT_EVERY_MB = 10
_MB = 1_000_000


class Downloader(StrEnum):
    """A program that resolves and downloads the jars."""

    MAVEN = "Maven"
    JGO = "jgo"


def choose_downloader(*, maven: bool, java: bool, jgo: bool) -> Downloader:
    """Returns the program for a machine that has Maven, a Java of its own (without which Maven does not run), jgo.

    Raises :class:`StackError` if none of them can be used.
    """
    if maven and java:
        return Downloader.MAVEN
    if jgo:
        return Downloader.JGO
    missing = "a Java of its own" if maven else "`mvn` on the PATH"
    raise StackError(
        f"Kafka's jars must be downloaded, but this machine has no {missing} and the package jgo is not installed: "
        "install headrace[local], which brings jgo, or install Maven and a JDK, or set HEADRACE_CACHE to a folder that "
        f"contains kafka-{KAFKA_VERSION}/libs, or set HEADRACE_KAFKA to the address of an external Kafka."
    )


def differences(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Returns a phrase for each jar in ``folder`` that is missing, damaged or not in ``digests`` (name → SHA-256)."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}
    missing = [f"{name} is missing" for name in digests if name not in found]
    wrong = [
        f"{name} is damaged" if name in digests else f"{name} is not expected"
        for name, digest in found.items()
        if digests.get(name) != digest
    ]
    return missing + wrong


def known_digests() -> dict[str, str]:
    """Returns the SHA-256 of each jar by its name."""
    lines = (line.split() for line in DIGESTS.read_text().splitlines())
    return {name: digest for digest, name in lines}


async def kafka_jars(cache: Path, report: Callable[[str], None] = lambda _: None) -> Path:
    """Returns the folder of Kafka's jars, which are downloaded the first time; safe to call from several processes.

    ``report`` is called with a sentence before a download, and on its progress. Raises :class:`StackError` if no
    program can download them, the download fails or a jar is damaged.
    """
    libs = cache / f"kafka-{KAFKA_VERSION}" / "libs"
    if libs.is_dir():
        return libs
    downloader = choose_downloader(
        maven=shutil.which("mvn") is not None,
        java=find_java().installed,
        jgo=importlib.util.find_spec("jgo") is not None,
    )
    try:
        libs.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(
            f"The cache {cache} (HEADRACE_CACHE) cannot be written to: {error.strerror}. Choose another folder; "
            "Kafka's jars are downloaded into it."
        ) from error
    async with _locked(libs.parent / "download.lock"):
        if libs.is_dir():  # Another process has downloaded them meanwhile.
            return libs
        report(f"{downloader} downloads Kafka {KAFKA_VERSION} ({_SIZE_MB} MB, once) into {libs.parent}")
        with tempfile.TemporaryDirectory(dir=libs.parent) as folder:
            downloaded = Path(folder, "libs")
            if downloader is Downloader.MAVEN:
                await _by_maven(downloaded, libs.parent)
            else:
                await _by_jgo(downloaded, libs.parent, report)
            downloaded.rename(libs)
    return libs


async def _by_maven(downloaded: Path, logs: Path) -> None:
    maven, pom = shutil.which("mvn"), downloaded.with_name("pom.xml")
    assert maven is not None
    pom.write_text(_pom())
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={downloaded}")
    command = Command((maven, "-q", "-B", "-f", str(pom), *goal), JAVA_ENVIRONMENT)
    await _run(Downloader.MAVEN, command, downloaded, logs, "check the network and ~/.m2/settings.xml")


async def _by_jgo(downloaded: Path, logs: Path, report: Callable[[str], None]) -> None:
    # A repository of its own: jgo would keep a partial file in ~/.m2, where Maven would take it for a whole one.
    repository = downloaded.with_name("repository")
    artifacts = (":".join(artifact) for artifact in ARTIFACTS)
    reporting = asyncio.create_task(_report_progress(repository, report))
    try:
        advice = "check the disk space and the network (HTTPS_PROXY names a proxy, REQUESTS_CA_BUNDLE its certificates)"
        command = Command((*_JGO, str(repository), str(downloaded), *artifacts))
        await _run(Downloader.JGO, command, downloaded, logs, advice)
    finally:
        reporting.cancel()
    if wrong := await asyncio.to_thread(differences, downloaded, known_digests()):
        raise StackError(
            f"jgo downloaded other jars than those of Kafka {KAFKA_VERSION}: {'; '.join(wrong)}. Run the command "
            "again; if the error stays, something on the way changes files, such as a proxy."
        )


async def _run(downloader: Downloader, command: Command, downloaded: Path, logs: Path, advice: str) -> None:
    log = logs / "download.log"
    log.unlink(missing_ok=True)  # From an earlier attempt.
    if await run_to_end(command, log) != 0 or not downloaded.is_dir():
        raise StackError(
            f"{downloader} could not download Kafka {KAFKA_VERSION}: {advice}, or set HEADRACE_CACHE to a folder that "
            f"contains kafka-{KAFKA_VERSION}/libs of another machine, or set HEADRACE_KAFKA to the address of an "
            f"external Kafka. The end of {log}:\n{end_of(log)}"
        )


async def _report_progress(folder: Path, report: Callable[[str], None]) -> None:
    """Report every ten megabytes that arrive in ``folder``, until cancelled."""
    reported = 0
    while True:
        await asyncio.sleep(1)
        with suppress(FileNotFoundError):  # A file was moved meanwhile.
            arrived = sum(path.stat().st_size for path in folder.rglob("*.jar")) // _MB
            if arrived >= reported + _REPORT_EVERY_MB:
                reported = arrived
                report(f"{arrived} of {_SIZE_MB} MB")


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in ARTIFACTS
    )
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""


@asynccontextmanager
async def _locked(file: Path) -> AsyncIterator[None]:
    with file.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.2)
        yield
