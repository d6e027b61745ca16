"""The gateway as a process of its own: it can be killed, and started again on the same folder and port."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from headrace.deploy.system.children import end_of
from headrace.deploy.system.notify import ReadySocket
from headrace.deploy.system.ports import free_port
from tests.agents.gateway.running import Recorded, recorded_in
from tests.agents.sdk_helpers import NOWHERE

START_S = 120.0
"""Longest wait for a gateway to listen, and to stop."""

OPTIONS = ("tool_parser=hermes", "reasoning_parser=qwen3", 'model_aliases={"*": "policy"}', "flush_s=0")


class Launcher:
    """The process that forks gateways (:mod:`tests.agents.gateway.clients.launcher`)."""

    def __init__(self, model_dir: Path) -> None:
        """``model_dir``: the model that gateways parse answers of, for its tokenizer."""
        self.model_dir = model_dir
        argv = [sys.executable, "-m", "tests.agents.gateway.clients.launcher", str(model_dir)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def fork(self, env: dict[str, str], log: Path) -> int:
        """Start a gateway; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"env": env, "options": OPTIONS, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return int(self._said())

    def wait(self) -> None:
        """Wait until it can fork."""
        assert self._said() == "ready"

    def close(self) -> None:
        """End it, and the gateways with it."""
        self._process.kill()
        self._process.communicate()

    def _said(self) -> str:
        """Its next line; vLLM may print lines of its own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (said := line.strip()) == "ready" or said.isdecimal():
                return said
        raise AssertionError(f"the launcher ended with {self._process.wait()}")


@contextmanager
def launching(model_dir: Path) -> Iterator[Launcher]:
    """A launcher that can fork."""
    launcher = Launcher(model_dir)
    try:
        launcher.wait()
        yield launcher
    finally:
        launcher.close()


class GatewayProcess:
    """The process. Its events stay in its spool, because there is no Kafka."""

    def __init__(self, folder: Path, engine: str, launcher: Launcher) -> None:
        """``engine``: address of vLLM."""
        self.folder = folder
        self.port = free_port()
        self._engine = engine
        self._launcher = launcher
        self._log = folder / "gateway.log"
        self._pidfd: int | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it; returns once it listens."""
        self.folder.mkdir(exist_ok=True)
        with ReadySocket() as said:
            env = {
                **said.env,
                "HEADRACE_DATA": str(self.folder),
                "HEADRACE_KAFKA": NOWHERE,
                "HEADRACE_VLLM": self._engine,
                "HEADRACE_GATEWAY_PORT": str(self.port),
                "HEADRACE_MODEL_DIR": str(self._launcher.model_dir),
            }
            self._pidfd = os.pidfd_open(self._launcher.fork(env, self._log))
            ready, ended = asyncio.create_task(said.ready()), asyncio.create_task(self._ended())
            done, _ = await asyncio.wait({ready, ended}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            for each in (ready, ended):
                each.cancel()
            assert ready in done, f"the gateway did not start:\n{self.log()}"

    def kill(self) -> None:
        """``kill -9``."""
        self._send(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in order."""
        self._send(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            await self._ended()

    def log(self) -> str:
        """The end of its log."""
        return end_of(self._log)

    def recorded(self) -> list[Recorded]:
        """All events, once it has stopped."""
        return recorded_in(self.folder / "gateway")

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def _ended(self) -> None:
        if self._pidfd is None:
            return
        loop, has_ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, has_ended.set)
        try:
            await has_ended.wait()
        finally:
            loop.remove_reader(self._pidfd)


@asynccontextmanager
async def running_process(folder: Path, engine: str, launcher: Launcher) -> AsyncIterator[GatewayProcess]:
    """A gateway that serves."""
    gateway = GatewayProcess(folder, engine, launcher)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()
