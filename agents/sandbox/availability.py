"""Which providers work on this machine and, of those that do not, why and what mends it.

overlay  works   control groups bound memory and processes
runsc    no      there is no runsc on the PATH: apt-get install runsc
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import ProviderUnavailable
from headrace.agents.sandbox.runsc import Runsc

USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")

SYSCTLS = (
    (USER_NAMESPACES, "0", "sysctl -w user.max_user_namespaces=15000"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Settings of the kernel that forbid user namespaces: file, the value that forbids, and the command that allows."""

REMOTE = {"e2b": "E2B_API_KEY", "modal": "MODAL_TOKEN_ID", "daytona": "DAYTONA_API_KEY"}
"""Remote providers: package, and the environment variable with its credential."""


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known about one provider."""

    provider: str
    """Its name."""
    works: bool
    """Whether a command has run in a sandbox of it; of remote providers, whether the package and a key are there."""
    message: str
    """What it gives, or why it does not work and the command that mends it."""


def mends(read: Callable[[Path], str | None], filesystems: str) -> list[str]:
    """Return what would let unprivileged processes mount an overlay. ``read``: returns a file's content or ``None``;
    ``filesystems``: content of /proc/filesystems."""
    found = [command for path, forbids, command in SYSCTLS if (read(path) or "").strip() == forbids]
    if read(USER_NAMESPACES) is None:
        found.append("use a kernel with user namespaces (CONFIG_USER_NS)")
    if "\toverlay\n" not in filesystems:
        found.append("modprobe overlay")
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


async def available(store: Path) -> list[Availability]:
    """Try every provider and return what was found, with stores in ``store`` for those that run here."""
    return [await _overlay(store / "overlay"), await _runsc(store / "runsc"), _local(), *map(_remote, REMOTE)]


async def _overlay(store: Path) -> Availability:
    try:
        provider = await Overlay.create(store)
    except ProviderUnavailable as error:
        commands = mends(_read, Path("/proc/filesystems").read_text())
        advice = "".join(f"; {command}" for command in commands)
        if not commands and "mount" in str(error):
            advice = (
                "; the store may be on a file system that cannot hold layers, such as a container's own overlay: "
                "choose a folder on ext4, xfs, btrfs or a volume with --store"
            )
        return Availability("overlay", False, f"{error}{advice}")
    try:
        groups = "control groups bound memory and processes of a command together"
        if provider.groups is None:
            groups = "no control groups can be created here: memory is bounded for each process only; run it as root"
        user = f"as user {provider.user}" if provider.user is not None else "as this user"
        return Availability("overlay", True, f"files; no network; {user}; {groups}")
    finally:
        provider.close()


async def _runsc(store: Path) -> Availability:
    try:
        provider = await Runsc.create(store)
    except ProviderUnavailable as error:
        return Availability("runsc", False, str(error))
    await provider.close()
    return Availability("runsc", True, "files and memory; no network; a kernel of its own")


def _local() -> Availability:
    return Availability("local", True, "files; NO isolation: commands can do whatever this process can")


def _remote(name: str) -> Availability:
    if importlib.util.find_spec(name) is None:
        return Availability(name, False, f"the package {name} is not installed: pip install {name}")
    key = REMOTE[name]
    if key not in os.environ:
        return Availability(name, False, f"there is no {key} in the environment: set it to the service's key")
    return Availability(name, True, "package and key are there; not tried, because the service charges for it")
