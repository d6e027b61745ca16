"""What sandboxed code tries and does not get: the host's files, a network, more than its share, a life after its
command."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.sandbox.confined import View
from headrace.agents.sandbox.overlay import Overlay, OverlaySandbox
from headrace.agents.sandbox.protocol import FileMissing, Limits, Outcome, PathRefused, SandboxError, TooLarge
from tests.agents.sandbox.conftest import SMALL


async def output(sandbox: OverlaySandbox, script: str) -> str:
    result = await sandbox.execute(["sh", "-c", script])
    return (result.stdout + result.stderr).decode()


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/root", "/home", os.path.expanduser("~"), __file__])
async def test_the_hosts_files_are_not_there(sandbox: OverlaySandbox, path: str) -> None:
    assert (await sandbox.execute(["test", "-e", path])).exit_code == 1


async def test_only_system_folders_are_visible(sandbox: OverlaySandbox) -> None:
    assert set((await output(sandbox, "ls /")).split()) <= {
        *("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "work")
    }
    assert set((await output(sandbox, "ls /etc")).split()) <= {"alternatives", "ld.so.cache"}
    assert set((await output(sandbox, "ls /dev")).split()) <= {
        *("console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
        *("tty", "urandom", "zero"),
    }


@pytest.mark.parametrize("path", ["/usr/x", "/bin/x", "/etc/x", "/dev/x", "/x", "/proc/sys/kernel/hostname"])
async def test_nothing_outside_the_work_folder_can_be_written(sandbox: OverlaySandbox, path: str) -> None:
    assert (await sandbox.execute(["sh", "-c", f"echo x > {path}"])).exit_code != 0


async def test_tmp_is_private_and_lasts_as_long_as_a_command(sandbox: OverlaySandbox) -> None:
    name = f"headrace-{secrets.token_hex(8)}"
    assert (await sandbox.execute(["sh", "-c", f"echo x > /tmp/{name}"])).exit_code == 0
    assert not Path("/tmp", name).exists()
    assert (await sandbox.execute(["test", "-e", f"/tmp/{name}"])).exit_code == 1


async def test_commands_have_no_privileges_and_cannot_get_any(sandbox: OverlaySandbox) -> None:
    assert (await output(sandbox, "id -u")).strip() == "1000"
    assert "CapEff:\t0000000000000000" in await output(sandbox, "cat /proc/self/status")
    assert "CapBnd:\t0000000000000000" in await output(sandbox, "cat /proc/self/status")
    assert "NoNewPrivs:\t1" in await output(sandbox, "cat /proc/self/status")
    for attempt in ("unshare --user true", "mount -t tmpfs x /tmp", "chroot /work true", "mknod d c 1 3", "chown 0 f"):
        assert (await sandbox.execute(["sh", "-c", f"touch f; {attempt}"])).exit_code != 0, attempt


async def test_a_file_that_runs_as_its_owner_gives_nothing(sandbox: OverlaySandbox) -> None:
    assert (await output(sandbox, "cp /usr/bin/id id; chmod u+s id; ./id -u")).strip() == "1000"


@pytest.fixture
def server() -> Iterator[int]:
    """A port of the host on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_there_is_no_network_not_even_the_hosts_loopback(sandbox: OverlaySandbox, server: int) -> None:
    connect = f"import socket; socket.create_connection(('127.0.0.1', {server}), 2)"
    assert b"refused" in (await sandbox.execute(["python3", "-c", connect])).stderr
    send = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    assert b"unreachable" in (await sandbox.execute(["python3", "-c", send])).stderr
    assert (await output(sandbox, "ls /sys 2>&1; tail -n +3 /proc/net/dev | cut -d: -f1")).split()[-1] == "lo"


async def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox: OverlaySandbox) -> None:
    name = f"headrace-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert b"refused" in (await sandbox.execute(["python3", "-c", connect])).stderr


async def test_processes_of_the_host_are_neither_seen_nor_signalled(sandbox: OverlaySandbox) -> None:
    seen = await output(sandbox, "ls /proc | grep -c '^[0-9]'")
    assert int(seen) < 10
    assert (await sandbox.execute(["sh", "-c", f"kill -0 {os.getpid()}"])).exit_code != 0


FORK_BOMB = "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(60)"


async def test_a_fork_bomb_is_bounded_and_ends(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    result = await sandbox.execute(["python3", "-c", FORK_BOMB])
    assert result.exit_code == 1
    assert b"BlockingIOError" in result.stderr
    if overlay.groups is not None:
        assert result.outcome is Outcome.TOO_MANY_PROCESSES
    assert (await sandbox.execute(["echo", "next"])).stdout == b"next\n"


async def test_a_hog_of_memory_ends_and_the_next_command_has_its_own_verdict(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    result = await sandbox.execute(["python3", "-c", "x = bytearray(400 << 20)"])
    assert result.exit_code in {1, 128 + 9}
    if overlay.groups is not None:
        assert result.outcome is Outcome.OUT_OF_MEMORY
    assert (await sandbox.execute(["echo", "next"])).outcome is Outcome.COMPLETED


async def test_scratch_in_memory_is_bounded(sandbox: OverlaySandbox) -> None:
    for folder in ("/tmp", "/dev/shm"):
        assert (await sandbox.execute(["sh", "-c", f"head -c 200000000 /dev/zero > {folder}/f"])).exit_code != 0


LEFT = "setsid sh -c 'trap \"\" TERM HUP; while :; do date >> beat; sleep 0.05; done' </dev/null >/dev/null 2>&1 &"


@pytest.mark.parametrize("end", ["exit 0", "sleep 60"])
async def test_processes_left_behind_are_dead_when_the_command_has_ended(sandbox: OverlaySandbox, end: str) -> None:
    result = await sandbox.execute(["sh", "-c", f"{LEFT} sleep 0.5; {end}"], timeout_s=2)
    assert result.outcome is (Outcome.COMPLETED if end == "exit 0" else Outcome.TIMED_OUT)
    beats = await sandbox.read("beat")
    assert beats
    await asyncio.sleep(0.3)
    assert await sandbox.read("beat") == beats


OUTLIVES_ITS_KILLER = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(16, 1, None, None):
    raise SystemExit("cannot be traced")
os.waitpid(1, 0x40000000)
NAMES = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base"
class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in (NAMES + " ds es fs gs").split()]
before, now = Registers(), Registers()
libc.ptrace(12, 1, None, ctypes.byref(before))
libc.ptrace(12, 1, None, ctypes.byref(now))
now.rax, now.rdi, now.rsi, now.orig_rax = 157, 1, 0, 2**64 - 1  # prctl(PR_SET_PDEATHSIG, 0)
now.rip -= 2
libc.ptrace(13, 1, None, ctypes.byref(now))
libc.ptrace(9, 1, None, None)
os.waitpid(1, 0x40000000)
before.rip -= 2
before.rax, before.orig_rax = before.orig_rax, 2**64 - 1
libc.ptrace(13, 1, None, ctypes.byref(before))
libc.ptrace(17, 1, None, None)
while True:
    with open("beat", "a") as file:
        file.write("x")
    time.sleep(0.02)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program sets registers of x86-64")
async def test_a_command_that_frees_its_first_process_of_its_parent_ends_all_the_same(overlay: Overlay) -> None:
    sandbox = await overlay.start({"outlives.py": OUTLIVES_ITS_KILLER.encode()}, SMALL)
    result = await sandbox.execute(["python3", "outlives.py"], timeout_s=3)
    assert result.outcome is Outcome.TIMED_OUT or b"cannot be traced" in result.stderr
    beats = (await sandbox.execute(["cat", "beat"])).stdout
    await asyncio.sleep(0.3)
    assert (await sandbox.execute(["cat", "beat"])).stdout == beats


async def test_commands_cannot_write_into_frozen_layers(overlay: Overlay) -> None:
    sandbox = await overlay.start({"f": b"0"}, SMALL)
    snapshot = await sandbox.snapshot()
    await sandbox.execute(["sh", "-c", "echo 1 > f; chmod 000 .; chmod 755 .; rm f; ln -s /etc f"])
    assert await (await overlay.restore(snapshot)).read("f") == b"0"


async def test_a_snapshot_holds_links_and_special_files_without_following_them(sandbox: OverlaySandbox) -> None:
    await sandbox.execute(["sh", "-c", "rm main.py; ln -s /etc/shadow main.py; mkfifo pipe; mkdir -m 000 closed"])
    snapshot = await asyncio.wait_for(sandbox.snapshot(), 10)
    (fork,) = await sandbox.fork(snapshot, 1)
    assert isinstance(fork, OverlaySandbox)
    assert (await output(fork, "readlink main.py; test -p pipe && echo fifo; ls -d closed")).split() == [
        *("/etc/shadow", "fifo", "closed")
    ]
    with pytest.raises(PathRefused):
        await fork.read("main.py")


@pytest.mark.parametrize("limits", [SMALL, Limits()], ids=["few files", "many files"])
async def test_a_tree_nested_a_thousand_deep_is_an_outcome_and_is_removed(overlay: Overlay, limits: Limits) -> None:
    sandbox = await overlay.start({}, limits)
    dig = "import os\nfor _ in range(3000):\n  os.mkdir('d'); os.chdir('d')"
    assert (await sandbox.execute(["python3", "-c", dig])).outcome is Outcome.DISK_FULL
    with pytest.raises(TooLarge):
        await sandbox.snapshot()
    await sandbox.stop()
    assert [path.name for path in overlay.store.process.iterdir()] == ["alive"]


HOLDS_REMOVED_FILES = """
import mmap, os, sys, time
held = []
for i in range(10):
    file = os.open("f", os.O_RDWR | os.O_CREAT)
    os.unlink("f")
    if sys.argv[1] == "mapped":
        os.ftruncate(file, 1 << 20)
        held.append(mmap.mmap(file, 1 << 20))
        held[-1].write(bytes(1 << 20))
        os.close(file)
    else:
        os.write(file, bytes(1 << 20))
        held.append(file)
time.sleep(15)
"""


@pytest.mark.parametrize("how", ["open", "mapped"])
async def test_removed_files_that_are_held_count_as_written(overlay: Overlay, how: str) -> None:
    sandbox = await overlay.start({}, SMALL)
    result = await sandbox.execute(["python3", "-c", HOLDS_REMOVED_FILES, how])
    if how == "open" or os.geteuid() == 0:  # the kernel shows mapped files to root only
        assert result.outcome is Outcome.DISK_FULL


async def test_files_in_memory_do_not_count_as_written(sandbox: OverlaySandbox) -> None:
    holds = "import os, time\nf = os.open('/tmp/f', os.O_RDWR | os.O_CREAT)\nos.unlink('/tmp/f')\n"
    result = await sandbox.execute(["python3", "-c", f"{holds}os.write(f, bytes(6 << 20)); time.sleep(1)"])
    assert result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("close", ["chmod 000 .", "chmod 000 d", "chmod 600 d; chmod 000 ."])
async def test_a_closed_folder_is_refused_and_the_work_folder_is_opened(sandbox: OverlaySandbox, close: str) -> None:
    assert (await sandbox.execute(["sh", "-c", f"mkdir d; {close}"])).exit_code == 0
    assert (await sandbox.execute(["sh", "-c", "echo next > f; cat f"])).stdout == b"next\n"
    if " d" in close:
        with pytest.raises(PathRefused, match="closed"):
            await sandbox.execute(["true"], cwd="d")
    (fork,) = await sandbox.fork(await sandbox.snapshot(), 1)
    assert (await fork.execute(["cat", "f"])).stdout == b"next\n"


async def test_a_deep_tree_can_be_removed_by_a_command(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, Limits())
    dig = "import os\nfor _ in range(3000):\n  os.mkdir('d'); os.chdir('d')"
    await sandbox.execute(["python3", "-c", dig])
    assert (await sandbox.execute(["sh", "-c", "sleep 0.5; rm -r d"])).outcome is Outcome.COMPLETED
    await sandbox.snapshot()


async def test_the_environment_is_the_sandboxs_own(sandbox: OverlaySandbox) -> None:
    names = {line.split("=")[0] for line in (await output(sandbox, "env")).splitlines()}
    assert names == {"PATH", "HOME", "USER", "LANG", "PWD"}


async def test_masked_files_and_folders_cannot_be_read(overlay: Overlay) -> None:
    found = await (await overlay.start({}, SMALL)).execute(
        ["python3", "-c", "import fnmatch, json; print(fnmatch.__file__, json.__path__[0])"]
    )
    file, folder = found.stdout.decode().split()
    sandbox = await overlay.start({}, replace(SMALL, masked=(file, folder, "/etc/hostname")))
    assert (await sandbox.execute(["cat", file])).exit_code != 0
    assert (await sandbox.execute(["ls", folder])).stdout == b""
    assert (await sandbox.execute(["python3", "-c", "import textwrap"])).exit_code == 0


async def test_commands_inherit_no_open_files(sandbox: OverlaySandbox) -> None:
    result = await sandbox.execute(["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"])
    assert result.stdout == b"['0', '1', '2', '3']\n"  # 3 is the folder that is being listed


async def test_a_sandbox_that_cannot_be_set_up_is_an_error_and_no_result(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    overlay.view = View(folders=("/no-such-folder",))
    with pytest.raises(SandboxError, match="no-such-folder"):
        await sandbox.execute(["true"])


async def test_a_mask_that_hides_nothing_is_an_error(overlay: Overlay) -> None:
    with pytest.raises(PathRefused, match="no-such-file"):
        await overlay.start({}, Limits(masked=("/usr/lib/no-such-file",)))


async def test_work_of_one_sandbox_is_not_visible_to_another(overlay: Overlay) -> None:
    one, other = await overlay.start({}, SMALL), await overlay.start({}, SMALL)
    name = f"headrace-{secrets.token_hex(8)}"
    await one.write(name, b"x")
    with pytest.raises(FileMissing):
        await other.read(name)
    assert await output(other, f"find / -name {name} 2>/dev/null") == ""
