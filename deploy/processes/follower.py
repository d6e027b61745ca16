"""The follower: swaps published weights into vLLM."""

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.deploy.errors import StackError
from headrace.deploy.processes.model_and_key import make_signing_key
from headrace.deploy.processes.process import Flow, Process

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.trainer.follower.config import FollowerConfig

_ANY_KEY = "0" * 64
"""Placeholder for the trainer's key while options are checked, which is before the key is created."""


def follower_config(settings: "Settings", *, trust: str | None = None) -> "FollowerConfig":
    """Returns the follower's configuration. It trusts the key ``trust``, or that of the trainer on the same data
    folder, if there is one."""
    from headrace.deploy.configuration.settings import configured
    from headrace.trainer.follower.config import FollowerConfig

    engine, key = settings.required_address("vllm"), trust or _key_here(settings)
    return configured(
        settings,
        "follower",
        FollowerConfig,
        bootstrap=settings.required_address("kafka"),
        run=settings.run,
        engine_url=engine,
        engine=urlsplit(engine).netloc.rpartition("@")[2],
        cache_dir=settings.data / "weights",
        store_url=settings.objects,
        trust=[key] if key else [],
    )


def _key_here(settings: "Settings") -> str | None:
    from headrace.trainer.weights.signing import SigningKeyError, load_key

    if not settings.signing_key.is_file():
        return None
    try:
        return load_key(settings.signing_key).public
    except (SigningKeyError, OSError) as error:
        raise StackError(f"The follower cannot read the trainer's key: {error}") from error


def _run(settings: "Settings") -> int:
    from headrace.deploy.system.until_stopped import until_stopped
    from headrace.trainer.follower.follower import run_follower

    return until_stopped(partial(run_follower, follower_config(settings)))


def _flow() -> Flow:
    from headrace.schemas.topics import ALERTS, APPLIED, WEIGHTS

    return Flow((WEIGHTS,), (APPLIED, ALERTS))


FOLLOWER = Process(
    "follower",
    "weights → vLLM → applied",
    flow=_flow,
    feeds=(("vllm", "swaps weights"),),
    run=_run,
    settings=("kafka", "vllm"),
    needs=("kafka", "vllm"),
    prepare=make_signing_key,
    configuration="headrace.trainer.follower.config:FollowerConfig",
    configure=partial(follower_config, trust=_ANY_KEY),
    memory_mb=250,
    extra="trainer",
)
