"""The command line that confines a command: control groups, an unprivileged user, an overlay mount, bubblewrap.

    sh … setpriv --reuid=65534 … unshare --user --mount sh -c 'mount -t overlay … && exec bwrap …' -- python3 main.py

Each program replaces the one before it. The mount lives in a mount namespace of its own, so it vanishes with the
command, and with this process if that is killed: nothing is ever left to unmount.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.agents.sandbox.protocol import Limits, PathRefused

PROGRAMS = ("bwrap", "unshare", "setpriv", "prlimit", "mount")
"""Programs that it uses, of bubblewrap and util-linux."""

BWRAP = "bwrap"
"""Name or path of bubblewrap."""

WORK = "/work"
"""The work folder, as commands see it."""

SANDBOX_USER = 1000
"""User and group of commands, as they see themselves."""

SCRATCH_BYTES = 64 * 2**20
"""Size of /tmp and of /dev/shm, which live in memory and as long as a command."""

MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/tmp")
"""Folders of the host of which one serves as mount point, inside the private mount namespace only."""

JOIN = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
"""Joins the control groups and runs the rest of its arguments."""

MOUNT = 'mount -t overlay -o "$1" overlay "$2" || exit 125; shift 2; exec "$@"'
"""Mounts the overlay and runs the rest of its arguments."""

SYSTEM_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class View:
    """What commands see of the host, read-only, and their environment."""

    folders: tuple[str, ...] = ()
    """Absolute paths of folders beside /usr that commands can read, such as a Python installation."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables beside PATH, HOME, USER and LANG."""


def default_view() -> View:
    """Return a view with a Python: that of the system, or this process's installation if the system has none."""
    if shutil.which("python3", path="/usr/local/bin:/usr/bin") is not None:
        return View()
    prefix = os.path.realpath(sys.base_prefix)
    return View((prefix,), {"PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin"})


def system_arguments(view: View) -> list[str]:
    """Return bubblewrap's arguments for what is visible of the host."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_LINKS:
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        arguments += ["--ro-bind-try", path, path]
    for path in view.folders:
        arguments += ["--ro-bind", path, path]
    return arguments


def masked_paths(masked: Sequence[str], view: View) -> list[str]:
    """Return the real paths of ``limits.masked`` that commands could see otherwise. Raises :class:`PathRefused` if a
    path is missing on the host, since then a typing error would reveal what was meant."""
    visible = ("/usr/", *(f"{folder}/" for folder in view.folders))
    found = []
    for given in masked:
        path = os.path.realpath(given)
        if not os.path.exists(path):
            raise PathRefused(f"limits.masked contains {given!r}, which does not exist: correct or remove it")
        if f"{path}/".startswith(visible):
            found.append(path)
    return found


def mask_arguments(masked: Sequence[str], view: View) -> list[str]:
    """Return bubblewrap's arguments that hide ``limits.masked``; raises as :func:`masked_paths` does."""
    arguments = []
    for path in masked_paths(masked, view):
        if os.path.isdir(path):
            arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
        else:
            arguments += ["--ro-bind", "/dev/null", path]
    return arguments


def mount_point(view: View) -> str:
    """Return a folder to mount on that hides nothing which is visible."""
    for path in MOUNT_POINTS:
        if os.path.isdir(path) and not any(f"{folder}/".startswith(f"{path}/") for folder in view.folders):
            return path
    raise PathRefused(f"none of the folders {', '.join(MOUNT_POINTS)} can serve as mount point: create /mnt")


def overlay_options(lower: Sequence[str], upper: str, work: str) -> str:
    """Return the options of the mount; ``lower``: layers, the topmost first, all relative to the current folder."""
    return f"userxattr,lowerdir={':'.join(lower)},upperdir={upper},workdir={work}"


def confined(
    command: Sequence[str],
    *,
    options: str,
    cwd: Sequence[str],
    limits: Limits,
    view: View,
    user: int | None,
    joins: Sequence[str],
    status_fd: int,
) -> list[str]:
    """Return the whole command line.

    ``options``: of the overlay mount. ``cwd``: parts of the folder below the work folder. ``user``: user and group to
    become first, if this process is root. ``joins``: files of control groups. ``status_fd``: where bubblewrap reports
    the pid of the sandbox's first process."""
    point = mount_point(view)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        **view.environment,
    }
    join = ["sh", "-c", JOIN, "sh", *joins, "--"] if joins else []
    drop = []
    if user is not None:
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--"]
    mount = ["unshare", "--user", "--map-root-user", "--mount", "--propagation=private", "--"]
    mount += ["sh", "-c", MOUNT, "sh", options, point]
    jail = [BWRAP, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    jail += ["--cap-drop", "ALL", "--uid", str(SANDBOX_USER), "--gid", str(SANDBOX_USER), "--hostname", "sandbox"]
    jail += ["--json-status-fd", str(status_fd), "--clearenv"]
    for name, value in environment.items():
        jail += ["--setenv", name, value]
    jail += [*system_arguments(view), *mask_arguments(limits.masked, view), "--proc", "/proc", "--dev", "/dev"]
    scratch = str(SCRATCH_BYTES)
    jail += ["--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--size", scratch, "--tmpfs", "/tmp"]
    jail += ["--bind", point, WORK, "--chdir", "/".join([WORK, *cwd]), "--remount-ro", "/", "--"]
    return [*join, *drop, *mount, *jail, *command]
