"""The OCI bundle of a gVisor sandbox: a root folder of empty mount points, and its configuration.

{"process": {"args": ["sleep", "infinity"], "cwd": "/work", …}, "root": {"path": "rootfs"}, "mounts": […], …}
"""

import json
import os
from pathlib import Path
from typing import Any

from headrace.agents.sandbox.confined import SYSTEM_LINKS, WORK, View, masked_paths
from headrace.agents.sandbox.protocol import Limits

USER = 65534
"""User and group of commands."""


def write_bundle(bundle: Path, base: Path, view: View, limits: Limits) -> None:
    """Write the bundle of a sandbox with the files of the folder ``base``."""
    root = bundle / "rootfs"
    root.mkdir(parents=True)
    mounts = [_bind("/usr", "/usr"), _bind(os.fspath(base), WORK, "rw")]
    for name in SYSTEM_LINKS:
        system = Path("/", name)
        if system.is_symlink():
            (root / name).symlink_to(os.readlink(system))
        elif system.is_dir():
            mounts.append(_bind(os.fspath(system), os.fspath(system)))
    mounts += [_bind(path, path) for path in (*view.folders, "/etc/alternatives") if os.path.isdir(path)]
    empty = bundle / "empty"
    empty.mkdir()
    (bundle / "nothing").touch(mode=0o000)
    for path in masked_paths(limits.masked, view):
        mounts.append(_bind(os.fspath(empty if os.path.isdir(path) else bundle / "nothing"), path))
    for mount in mounts:
        if not Path(mount["destination"]).is_relative_to("/usr"):
            (root / mount["destination"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    mounts += [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
    ]
    for name in ("proc", "tmp", "dev"):
        (root / name).mkdir()
    # The user of commands must be able to enter them, whatever the umask of this process.
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)
    empty.chmod(0o755)
    (bundle / "config.json").write_text(json.dumps(_configuration(mounts, view)))


def _bind(source: str, destination: str, access: str = "ro") -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": source, "options": ["rbind", access]}


def _configuration(mounts: list[dict[str, Any]], view: View) -> dict[str, Any]:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        **view.environment,
    }
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": ["sleep", "infinity"],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": WORK,
            "capabilities": {kind: [] for kind in kinds},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "sandbox",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
