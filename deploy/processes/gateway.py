"""The gateway: agents' calls of models → the engine and, exactly, the log."""

from functools import partial
from typing import TYPE_CHECKING

from headrace.deploy.processes.process import Flow, Process
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.agents.gateway.config import GatewayConfig
    from headrace.deploy.configuration.settings import Settings


def gateway_config(settings: "Settings") -> "GatewayConfig":
    """Returns the gateway's configuration; parsers are those of the stack's vLLM unless its options name others.

    Raises :class:`StackError` if a session would outlive its trajectory: the assembler closes one after a time without
    an event, and later turns would be dead letters.
    """
    from headrace.agents.gateway.config import GatewayConfig
    from headrace.deploy.configuration.settings import configured
    from headrace.deploy.errors import StackError
    from headrace.deploy.processes.streams import assembler_config

    engine = settings.options.get("vllm", {})
    parsers = {name: engine[name] for name in ("tool_parser", "reasoning_parser") if name in engine}
    named = settings.options.get("gateway", {}).get("engines")
    config = configured(
        settings,
        "gateway",
        GatewayConfig,
        bootstrap=settings.required_address("kafka"),
        engines=[settings.required_address("vllm")] if named is None else named,
        port=settings.required_port("gateway_port"),
        folder=settings.data / "gateway",
        run=settings.run,
        model_path=str(settings.model_dir),
        **parsers,
    )
    closed_after_s = assembler_config(settings).idle_timeout_s
    if config.idle_s >= closed_after_s:
        raise StackError(
            f"gateway.idle_s is {config.idle_s:g}, and assemble.idle_timeout_s {closed_after_s:g}: turns that follow a "
            "longer pause would come after their trajectory was closed, and be lost. Set idle_s at least a minute "
            f"lower: --set gateway.idle_s={max(1.0, 0.8 * closed_after_s):g}, or idle_timeout_s higher."
        )
    return config


def _run(settings: "Settings") -> int:
    from headrace.agents.gateway.gateway import run_gateway
    from headrace.deploy.system.until_stopped import until_stopped

    return until_stopped(partial(run_gateway, gateway_config(settings)))


def _flow() -> Flow:
    from headrace.schemas.topics import EVENTS, FEEDBACK

    return Flow((), (EVENTS, FEEDBACK))


GATEWAY = Process(
    "gateway",
    "agents' calls → vLLM and the log",
    flow=_flow,
    feeds=(("agents", "answers"),),
    run=_run,
    settings=("kafka", "vllm", "gateway_port"),
    needs=("kafka", "vllm"),
    optional=True,
    ports=("gateway_port",),
    url=f"http://{HOST}:{{port}}",
    metrics=True,
    configuration="headrace.agents.gateway.config:GatewayConfig",
    configure=gateway_config,
    memory_mb=200,  # 760 with vLLM's parsers
)
