"""Each service's calls and replies, in the form of its package's documented interface.

Nothing here has spoken to a service: the replies are written from the documentation.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.agents.sandbox.protocol import Outcome, SandboxError, Snapshot, SnapshotKind
from headrace.agents.sandbox.remote.daytona import Daytona
from headrace.agents.sandbox.remote.e2b import E2b
from headrace.agents.sandbox.remote.machine import Remote
from headrace.agents.sandbox.remote.modal import Modal

PRINTED = "aGVsbG8K\n\n0\n"
"""What a machine prints for a command that printed hello."""


class Calls:
    """Records calls by name, and answers each with the reply of that name, or the reply's exception."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def method(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            self.made.append((name, arguments, options))
            reply = self.replies[name]
            if isinstance(reply, list):
                reply = reply.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

        return call

    def aio(self, name: str) -> SimpleNamespace:
        """A method of Modal, whose asynchronous form is its attribute ``aio``."""
        return SimpleNamespace(aio=self.method(name))

    def options(self, name: str) -> dict[str, Any]:
        return next(options for made, _, options in self.made if made == name)

    def arguments(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for made, arguments, _ in self.made if made == name]


class E2bError(Exception):
    pass


class E2bExit(E2bError):
    exit_code, stderr = 1, "sh: not found"


@pytest.fixture
def e2b(monkeypatch: pytest.MonkeyPatch) -> Calls:
    ran = [SimpleNamespace(stdout=text, stderr="", exit_code=0) for text in ("done\n", PRINTED, "file\n")]
    calls = Calls(
        {
            "run": ran,
            "write": SimpleNamespace(name="f", type="file", path="/home/user/work/f"),
            "read": bytearray(b"content"),
            "create_snapshot": SimpleNamespace(snapshot_id="team/snap:default", names=[]),
            "kill": True,
        }
    )
    sandbox = SimpleNamespace(
        sandbox_id="i3f2",
        commands=SimpleNamespace(run=calls.method("run")),
        files=SimpleNamespace(write=calls.method("write"), read=calls.method("read")),
        create_snapshot=calls.method("create_snapshot"),
        kill=calls.method("kill"),
    )
    calls.replies["create"] = sandbox
    package = SimpleNamespace(
        AsyncSandbox=SimpleNamespace(create=calls.method("create")),
        SandboxException=E2bError,
        CommandExitException=E2bExit,
        AuthenticationException=PermissionError,
        ServiceBusyException=BlockingIOError,
    )
    monkeypatch.setitem(sys.modules, "e2b", package)
    return calls


async def test_e2b(e2b: Calls) -> None:
    provider = Remote(E2b(template="base"))
    sandbox = await provider.start({"f": b"content"})
    assert (await sandbox.execute(["echo", "hello"])).stdout == b"hello\n"
    assert await sandbox.read("f") == b"content"
    snapshot = await sandbox.snapshot(SnapshotKind.MEMORY)
    await provider.restore(snapshot)
    await sandbox.stop()
    assert snapshot.id == "team/snap:default"
    assert e2b.options("create")["allow_internet_access"] is False
    assert e2b.arguments("create") == [("base",), ("team/snap:default",)]
    assert e2b.options("create_snapshot") == {"mode": "full"}
    assert e2b.made[-1][0] == "kill"


async def test_errors_of_e2b_are_errors_of_the_sandbox(e2b: Calls) -> None:
    sandbox = await Remote(E2b()).start({})
    e2b.replies["run"] = [E2bExit(), E2bError("gone"), PermissionError("wrong key")]
    for expected in ("sh: not found", "gone", "wrong key"):
        with pytest.raises(SandboxError, match=expected):
            await sandbox.execute(["true"])
    e2b.replies["create"] = E2bError("no such template")
    with pytest.raises(SandboxError, match="team/other"):
        await Remote(E2b()).restore(Snapshot("team/other", SnapshotKind.FILES, None, None, 0))


class ModalError(Exception):
    pass


@pytest.fixture
def modal(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls({"lookup": "the app", "write_bytes": None, "read_bytes": b"content", "terminate": None})
    process = SimpleNamespace(
        stdout=SimpleNamespace(read=calls.aio("stdout")),
        stderr=SimpleNamespace(read=calls.aio("stderr")),
        wait=calls.aio("wait"),
    )
    calls.replies |= {"exec": process, "stdout": ["done\n", PRINTED, "file\n"], "wait": 0, "stderr": "sh: not found"}
    calls.replies["snapshot_filesystem"] = SimpleNamespace(object_id="im-3f2")
    calls.replies["create"] = SimpleNamespace(
        object_id="sb-1",
        exec=calls.aio("exec"),
        filesystem=SimpleNamespace(write_bytes=calls.aio("write_bytes"), read_bytes=calls.aio("read_bytes")),
        snapshot_filesystem=calls.aio("snapshot_filesystem"),
        terminate=calls.aio("terminate"),
    )
    package = SimpleNamespace(
        App=SimpleNamespace(lookup=calls.aio("lookup")),
        Image=SimpleNamespace(from_id=lambda name: f"image {name}", from_registry=lambda name: f"registry {name}"),
        Sandbox=SimpleNamespace(create=calls.aio("create")),
        exception=SimpleNamespace(Error=ModalError),
    )
    monkeypatch.setitem(sys.modules, "modal", package)
    return calls


async def test_modal(modal: Calls) -> None:
    provider = Remote(Modal(image="python:3.11"))
    sandbox = await provider.start({"f": b"content"})
    assert (await sandbox.execute(["echo", "hello"])).stdout == b"hello\n"
    assert await sandbox.read("f") == b"content"
    snapshot = await sandbox.snapshot()
    await provider.restore(snapshot)
    await sandbox.stop()
    assert snapshot.id == "im-3f2"
    assert modal.options("create")["block_network"] is True
    assert [options["image"] for name, _, options in modal.made if name == "create"] == [
        "registry python:3.11",
        "image im-3f2",
    ]
    assert modal.made[-1][0] == "terminate"


async def test_errors_of_modal_are_errors_of_the_sandbox(modal: Calls) -> None:
    sandbox = await Remote(Modal()).start({})
    modal.replies["wait"] = 127
    with pytest.raises(SandboxError, match="sh: not found"):
        await sandbox.execute(["true"])
    modal.replies["exec"] = ModalError("terminated")
    with pytest.raises(SandboxError, match="terminated"):
        await sandbox.execute(["true"])


class DaytonaProblem(Exception):
    pass


@pytest.fixture
def daytona(monkeypatch: pytest.MonkeyPatch) -> Calls:
    texts = ("", "done\n", PRINTED, "file\n")
    calls = Calls(
        {
            "exec": [SimpleNamespace(exit_code=0, result=text) for text in texts],
            "upload_file": None,
            "download_file": b"content",
            "create_snapshot": None,
            "delete": None,
        }
    )
    calls.replies["create"] = SimpleNamespace(
        id="d-1",
        process=SimpleNamespace(exec=calls.method("exec")),
        fs=SimpleNamespace(upload_file=calls.method("upload_file"), download_file=calls.method("download_file")),
        create_snapshot=calls.method("create_snapshot"),
        delete=calls.method("delete"),
    )
    package = SimpleNamespace(
        AsyncDaytona=lambda: SimpleNamespace(create=calls.method("create")),
        CreateSandboxFromSnapshotParams=lambda **fields: SimpleNamespace(**fields),
        DaytonaError=DaytonaProblem,
    )
    monkeypatch.setitem(sys.modules, "daytona", package)
    return calls


async def test_daytona(daytona: Calls) -> None:
    provider = Remote(Daytona())
    sandbox = await provider.start({"f": b"content"})
    result = await sandbox.execute(["echo", "hello"])
    assert (result.stdout, result.outcome) == (b"hello\n", Outcome.COMPLETED)
    assert await sandbox.read("f") == b"content"
    snapshot = await sandbox.snapshot()
    await provider.restore(snapshot)
    await sandbox.stop()
    first, second = (arguments[0] for arguments in daytona.arguments("create"))
    assert (first.snapshot, second.snapshot) == (None, snapshot.id)
    assert first.network_block_all is True
    assert daytona.arguments("create_snapshot") == [(snapshot.id,)]
    assert daytona.made[-1][0] == "delete"


async def test_errors_of_daytona_are_errors_of_the_sandbox(daytona: Calls) -> None:
    sandbox = await Remote(Daytona()).start({})
    daytona.replies["exec"] = [SimpleNamespace(exit_code=1, result="no space"), DaytonaProblem("stopped")]
    for expected in ("no space", "stopped"):
        with pytest.raises(SandboxError, match=expected):
            await sandbox.execute(["true"])


@pytest.mark.parametrize(("service", "package"), [(E2b, "e2b"), (Modal, "modal"), (Daytona, "daytona")])
def test_without_its_package_a_service_is_not_available(
    service: type[Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=package):
        service()
