"""Control groups: bounds on the memory and the processes of all that a sandbox runs, and how often each was reached.

Version 1 (a hierarchy for each controller) and version 2 (one for all) are used where this process may create groups.

    /sys/fs/cgroup/memory/headrace-4711-9c1e…/memory.limit_in_bytes
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.agents.sandbox.protocol import Limits, Outcome, SandboxError

LAUNCHERS = 4
"""Processes in the group that are not the command's: the launcher's and bubblewrap's."""

MOUNTS = Path("/proc/self/mountinfo")

OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Controller:
    """One resource that groups bound."""

    parent: Path
    """Folder in which groups are created."""
    settings: tuple[tuple[str, str], ...]
    """File names and the field of :class:`Limits` that each takes."""
    counter: tuple[str, str]
    """File and key of the counter that grows when the bound is reached."""
    outcome: Outcome
    """What a command's end is called then."""


def _memory(parent: Path, version: int) -> Controller:
    if version == 1:
        bounds = (("memory.limit_in_bytes", "memory_bytes"), ("memory.memsw.limit_in_bytes", "memory_bytes"))
        return Controller(parent, bounds, ("memory.oom_control", "oom_kill"), Outcome.OUT_OF_MEMORY)
    bounds = (("memory.max", "memory_bytes"), ("memory.swap.max", ""))
    return Controller(parent, bounds, ("memory.events", "oom_kill"), Outcome.OUT_OF_MEMORY)


def _pids(parent: Path) -> Controller:
    return Controller(parent, (("pids.max", "processes"),), ("pids.events", "max"), Outcome.TOO_MANY_PROCESSES)


def hierarchies(mounts: str, own: str) -> dict[str, tuple[Path, int]]:
    """Return for ``memory`` and ``pids`` the folder of this process's group and the version of control groups.

    ``mounts`` and ``own``: contents of /proc/self/mountinfo and /proc/self/cgroup. Controllers without one are left
    out."""
    paths = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    found: dict[str, tuple[Path, int]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, place = before.split(" ")[3:5]
        for name in ("memory", "pids"):
            is_v1 = kind == "cgroup" and name in options.split(" ")[-1].split(",")
            if is_v1 or (kind == "cgroup2" and name not in found):
                path = paths.get(name if is_v1 else "", "/")
                inside = os.path.relpath(path, root) if path.startswith(root) else "."
                found[name] = (Path(os.path.normpath(Path(place) / inside)), 1 if is_v1 else 2)
    return found


class GroupsUnavailable(SandboxError):
    """This process may not create control groups; the message says why."""


class ControlGroups:
    """Creates the groups of sandboxes."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self.controllers = tuple(controllers)

    @classmethod
    def detect(cls) -> "ControlGroups":
        """Return the groups that this process may create. Raises :class:`GroupsUnavailable`."""
        found = hierarchies(MOUNTS.read_text(), OWN.read_text())
        if set(found) != {"memory", "pids"}:
            raise GroupsUnavailable("no hierarchy of control groups with memory and pids is mounted")
        for parent, version in set(found.values()):
            if version == 2:
                _enable(parent)
        groups = cls([_memory(*found["memory"]), _pids(found["pids"][0])])
        groups.remove_abandoned()
        groups.create("probe", Limits()).remove()
        return groups

    def create(self, sandbox_id: str, limits: Limits) -> "Group":
        """Create the group of a sandbox. Raises :class:`GroupsUnavailable`."""
        group = Group([(controller, controller.parent / _name(sandbox_id)) for controller in self.controllers])
        try:
            for controller, folder in group.parts:
                folder.mkdir(exist_ok=True)
                for file, field in controller.settings:
                    if (folder / file).exists():
                        value = getattr(limits, field) if field else 0
                        (folder / file).write_text(str(value + (LAUNCHERS if field == "processes" else 0)))
                if not (folder / controller.counter[0]).exists():
                    raise GroupsUnavailable(f"{folder} has no {controller.counter[0]}: the controller is not enabled")
        except OSError as error:
            group.remove()
            raise GroupsUnavailable(f"control groups cannot be created in {error.filename}: {error.strerror}") from None
        except GroupsUnavailable:
            group.remove()
            raise
        return group

    def remove_abandoned(self) -> None:
        """Remove groups of processes that ended."""
        for controller in self.controllers:
            for folder in controller.parent.glob("headrace-*-*"):
                pid = folder.name.split("-")[1]
                if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                    with contextlib.suppress(OSError):  # a process of it still runs, or another process removed it
                        folder.rmdir()

    def remove_own(self) -> None:
        """Remove what is left of the groups of this process."""
        for controller in self.controllers:
            for folder in controller.parent.glob(_name("*")):
                with contextlib.suppress(OSError):  # a command still runs in it
                    folder.rmdir()


def _name(sandbox_id: str) -> str:
    return f"headrace-{os.getpid()}-{sandbox_id}"


def _enable(parent: Path) -> None:
    """Let groups below ``parent`` have both controllers (version 2)."""
    control = parent / "cgroup.subtree_control"
    try:
        missing = {"memory", "pids"} - set(control.read_text().split())
        if missing:
            control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
    except OSError as error:
        raise GroupsUnavailable(f"{control} cannot enable memory and pids: {error.strerror}") from None


class Group:
    """The group of one sandbox: a folder for each controller."""

    def __init__(self, parts: Sequence[tuple[Controller, Path]]) -> None:
        self.parts = tuple(parts)
        self._seen = {controller.outcome: 0 for controller, _ in self.parts}

    @property
    def joins(self) -> list[str]:
        """Files into which a process writes its id to join."""
        return sorted({str(folder / "cgroup.procs") for _, folder in self.parts})

    @property
    def exists(self) -> bool:
        """Whether its folders are there: a process that does not see this one may have taken them for abandoned."""
        return all(folder.is_dir() for _, folder in self.parts)

    def reached(self) -> Outcome | None:
        """Return which bound was reached since the last call; ``None`` if none was."""
        outcome = None
        for controller, folder in self.parts:
            file, key = controller.counter
            count = _count((folder / file).read_text(), key)
            if count > self._seen[controller.outcome]:
                outcome = outcome or controller.outcome
            self._seen[controller.outcome] = count
        return outcome

    def remove(self) -> None:
        """Remove the folders, in which no process may be left."""
        for _, folder in self.parts:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()


def _count(text: str, key: str) -> int:
    """Return the number after ``key`` in lines such as ``oom_kill 3``; 0 if there is none."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [key]), 0)
