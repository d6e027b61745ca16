import json
from pathlib import Path

import pytest

from headrace.deploy.errors import StackError
from headrace.deploy.processes.vllm_server import Device, VllmConfig, engine_command, wait_until_ready
from headrace.deploy.system.ports import free_port
from headrace.trainer.follower.vllm_plugin import BACKEND


def command(**options):
    return engine_command(
        VllmConfig(Path("/models/base"), host="127.0.0.1", port=8000, cache_dir=Path("/cache"), **options)
    )


def option(argv, name):
    return argv[argv.index(name) + 1]


def test_the_command_has_the_given_address_and_model():
    argv, _ = command()
    assert (option(argv, "--model"), option(argv, "--host"), option(argv, "--port")) == (
        "/models/base",
        "127.0.0.1",
        "8000",
    )


@pytest.mark.parametrize("device", Device)
def test_the_command_has_the_required_options_on_every_device(device):
    argv, env = command(device=device)
    assert json.loads(option(argv, "--weight-transfer-config")) == {"backend": BACKEND}
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert {"--enable-scale-out", "--enable-prefix-caching"} <= set(argv)
    # The recorded log-probabilities are those of the sampled distribution; truncation only if the agent asks for it.
    assert option(argv, "--logprobs-mode") == "processed_logprobs"
    assert option(argv, "--generation-config") == "vllm"


def test_cpu_settings_share_the_machine_and_gpu_settings_are_vllms_defaults():
    argv, env = command(device=Device.CPU, threads=2, kv_cache_bytes=1024)
    assert env["OMP_NUM_THREADS"] == "2"
    assert option(argv, "--kv-cache-memory-bytes") == "1024"
    assert option(argv, "--dtype") == "float32"
    argv, env = command(device=Device.CUDA)
    assert "OMP_NUM_THREADS" not in env
    assert not {"--enforce-eager", "--kv-cache-memory-bytes", "--block-size", "--dtype"} & set(argv)


def test_an_engine_may_share_a_gpu():
    argv, _ = command(device=Device.CUDA, gpu_memory_utilization=0.4)
    assert option(argv, "--gpu-memory-utilization") == "0.4"
    assert "--gpu-memory-utilization" not in command(device=Device.CUDA)[0]
    assert "--gpu-memory-utilization" not in command(gpu_memory_utilization=0.4)[0]
    with pytest.raises(ValueError, match="gpu_memory_utilization is 40"):
        command(gpu_memory_utilization=40)


def test_parsers_are_passed_on_by_their_names():
    argv, _ = command(tool_parser="hermes", reasoning_parser="qwen3")
    assert (option(argv, "--tool-call-parser"), option(argv, "--reasoning-parser")) == ("hermes", "qwen3")
    assert "--enable-auto-tool-choice" in argv
    assert not {"--tool-call-parser", "--reasoning-parser", "--enable-auto-tool-choice"} & set(command()[0])


def test_bytecode_is_kept_in_the_cache():
    _, env = command()
    assert Path(env["PYTHONPYCACHEPREFIX"]).is_relative_to("/cache")
    assert "PYTHONDONTWRITEBYTECODE" not in env


async def test_a_server_that_does_not_start_is_an_error_with_a_remedy():
    with pytest.raises(StackError, match="HEADRACE_START_TIMEOUT_S"):
        await wait_until_ready(f"http://127.0.0.1:{free_port()}", timeout_s=0.3)
