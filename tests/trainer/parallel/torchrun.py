"""Starts a job with ``torchrun``, with ranks on this machine."""

import asyncio
import os
import sys

from headrace.deploy.system.ports import free_port


async def start_torchrun(ranks: int, module: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start ``torchrun --nproc-per-node RANKS -m MODULE …`` in a session of its own; all output goes to stdout."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
        "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m", module, *arguments,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
