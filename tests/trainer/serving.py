"""A real vLLM server for tests, on a tiny model, with headrace's plugin."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from headrace.deploy.processes.vllm_server import VllmConfig, engine_command, wait_until_ready
from headrace.deploy.system.children import Child, Command, end_of
from headrace.deploy.system.ports import HOST, free_port
from tests.conftest import CACHE


@dataclass
class Server:
    """A server that can be killed and restarted on the same port."""

    model_dir: Path
    port: int
    log: Path
    plugins: Path | None = None
    """Folder of further plugins, as if they were installed."""
    child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        argv, env = engine_command(VllmConfig(self.model_dir, host=HOST, port=self.port, cache_dir=CACHE / "vllm"))
        if self.plugins is not None:
            env["PYTHONPATH"] = str(self.plugins)
        self.child = Child(Command(tuple(argv), env, unset=("PYTHONDONTWRITEBYTECODE",)), self.log)
        try:
            asyncio.run(wait_until_ready(self.url, 240))
        except BaseException:
            print(end_of(self.log, 60))
            self.kill()
            raise

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()

    def generate(self, token_ids: list[int], **sampling: Any) -> Any:
        body = {"token_ids": token_ids, "sampling_params": {"temperature": 1.0, "logprobs": 0, **sampling}}
        response = httpx.post(f"{self.url}/inference/v1/generate", json=body, timeout=120)
        response.raise_for_status()
        return response.json()["choices"][0]

    def stamp(self, text: str) -> None:
        """Put ``text`` on tokens from now on."""
        httpx.post(f"{self.url}/update_weight_version", json={"new_version": text}, timeout=120).raise_for_status()

    def sampled_tokens(self) -> float:
        """Tokens sampled since the start."""
        return self._metric("vllm:generation_tokens_total")

    def running(self) -> float:
        """Requests that are being answered."""
        return self._metric("vllm:num_requests_running")

    def _metric(self, name: str) -> float:
        # On a busy machine an answer takes longer than the client's five seconds.
        lines = httpx.get(f"{self.url}/metrics", timeout=120).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextmanager
def serving(model_dir: Path, log: Path, plugins: Path | None = None) -> Iterator[Server]:
    server = Server(model_dir, free_port(), log, plugins)
    server.start()
    try:
        yield server
    finally:
        server.kill()
