import json
from pathlib import Path

import pytest

from headrace.deploy.errors import StackError
from headrace.deploy.processes.vllm_server import Device, engine_command, wait_until_ready
from headrace.deploy.system.ports import free_port
from headrace.trainer.follower.vllm_plugin import BACKEND


def command(**options):
    return engine_command(Path("/models/base"), host="127.0.0.1", port=8000, cache_dir=Path("/cache"), **options)


def option(argv, name):
    return argv[argv.index(name) + 1]


def test_the_server_listens_where_it_is_told_on_the_model_it_is_given():
    argv, _ = command()
    assert (option(argv, "--model"), option(argv, "--host"), option(argv, "--port")) == (
        "/models/base",
        "127.0.0.1",
        "8000",
    )


@pytest.mark.parametrize("device", Device)
def test_every_device_has_what_the_circle_rests_on(device):
    argv, env = command(device=device)
    assert json.loads(option(argv, "--weight-transfer-config")) == {"backend": BACKEND}
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert {"--enable-scale-out", "--enable-prefix-caching"} <= set(argv)
    # What is recorded is what was sampled from, and nothing is truncated unless the agent says so.
    assert option(argv, "--logprobs-mode") == "processed_logprobs"
    assert option(argv, "--generation-config") == "vllm"


def test_a_cpu_is_shared_politely_and_a_gpu_is_left_to_vllm():
    argv, env = command(device=Device.CPU, threads=2, kv_cache_bytes=1024)
    assert env["OMP_NUM_THREADS"] == "2"
    assert option(argv, "--kv-cache-memory-bytes") == "1024"
    assert option(argv, "--dtype") == "float32"
    argv, env = command(device=Device.CUDA)
    assert "OMP_NUM_THREADS" not in env
    assert not {"--enforce-eager", "--kv-cache-memory-bytes", "--block-size", "--dtype"} & set(argv)


def test_bytecode_is_kept_in_the_cache():
    _, env = command()
    assert Path(env["PYTHONPYCACHEPREFIX"]).is_relative_to("/cache")
    assert "PYTHONDONTWRITEBYTECODE" not in env


async def test_a_server_that_never_comes_is_an_error_that_says_what_to_do():
    with pytest.raises(StackError, match="HEADRACE_START_TIMEOUT_S"):
        await wait_until_ready(f"http://127.0.0.1:{free_port()}", timeout_s=0.3)
