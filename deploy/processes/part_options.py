"""The configuration of each part, made of the settings of a process; and a look at all of them before anything starts.

Parts that are no process of ours, and those without options, refuse any option.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.deploy.configuration.settings import PREFIX, Settings, configured
from headrace.deploy.errors import StackError
from headrace.deploy.system.ports import HOST

if TYPE_CHECKING:
    from headrace.streams.assembly.assembler import AssemblerConfig
    from headrace.streams.clickhouse.sink import SinkConfig
    from headrace.streams.trace_exporter import TracesConfig
    from headrace.streams.workers import WorkersConfig
    from headrace.trainer.config import TrainerConfig
    from headrace.trainer.follower.follower import FollowerConfig

WITHOUT_OPTIONS = ("kafka", "clickhouse", "dashboard")
"""Parts that have none."""


def needed(settings: Settings, name: str) -> str:
    """The address of ``name``; raises :class:`StackError` where it is not set."""
    address: str | None = getattr(settings, name)
    if address is None:
        raise StackError(f"A worker needs the address of its {name}: set {PREFIX}{name.upper()}.")
    return address


def assembler_config(settings: Settings) -> "AssemblerConfig":
    """Of the assembler."""
    from headrace.streams.assembly.assembler import AssemblerConfig

    return configured(
        settings, "assemble", AssemblerConfig, bootstrap=needed(settings, "kafka"), member=settings.member
    )


def workers_config(settings: Settings, name: str = "workers") -> "WorkersConfig":
    """Of score and group or, by ``name``, one of them, or both with the assembler (``streams``). The options of
    ``workers`` hold for all of these."""
    from headrace.streams.workers import WorkersConfig

    return configured(
        settings,
        "workers",
        WorkersConfig,
        bootstrap=needed(settings, "kafka"),
        data_dir=settings.data,
        member=settings.member,
        **({"processors": (name,)} if name in ("score", "group") else {}),
    )


def sink_config(settings: Settings) -> "SinkConfig":
    """Of the sink."""
    from headrace.streams.clickhouse.sink import SinkConfig

    return configured(
        settings,
        "sink",
        SinkConfig,
        bootstrap=needed(settings, "kafka"),
        clickhouse_url=needed(settings, "clickhouse"),
        clickhouse_secrets=settings.clickhouse_secrets,
        member=settings.member,
    )


def traces_config(settings: Settings) -> "TracesConfig":
    """Of the exporter of traces."""
    from headrace.streams.trace_exporter import TracesConfig

    return configured(
        settings,
        "traces",
        TracesConfig,
        bootstrap=needed(settings, "kafka"),
        endpoint=f"{needed(settings, 'otlp').rstrip('/')}/v1/traces",
        member=settings.member,
    )


def follower_config(settings: Settings, *, trust: str | None = None) -> "FollowerConfig":
    """Of the follower. It trusts the key of the trainer on the same data folder, if there is one, or ``trust``."""
    from headrace.trainer.follower.follower import FollowerConfig

    engine, key = needed(settings, "vllm"), trust or _key_here(settings)
    return configured(
        settings,
        "follower",
        FollowerConfig,
        bootstrap=needed(settings, "kafka"),
        run=settings.run,
        engine_url=engine,
        engine=urlsplit(engine).netloc.rpartition("@")[2],
        cache_dir=settings.data / "weights",
        store_url=settings.objects,
        trust=[key] if key else [],
    )


def _key_here(settings: Settings) -> str | None:
    from headrace.trainer.weights.signing import SigningKeyError, load_key

    if not settings.signing_key.is_file():
        return None
    try:
        return load_key(settings.signing_key).public
    except (SigningKeyError, OSError) as error:
        raise StackError(f"The follower cannot read its trainer's key: {error}") from error


def vllm_command(settings: Settings) -> tuple[list[str], dict[str, str]]:
    """The engine's arguments and environment."""
    from headrace.deploy.processes.vllm_server import engine_command

    return configured(
        settings,
        "vllm",
        engine_command,
        model_dir=settings.model_dir,
        host=HOST,
        port=settings.vllm_port,
        cache_dir=settings.cache / "vllm",
    )


def _trainer_config(settings: Settings) -> "TrainerConfig":
    from headrace.deploy.processes.train import trainer_config

    return trainer_config(settings)


_CONFIGURATIONS: Mapping[str, Callable[[Settings], Any]] = {
    "assemble": assembler_config,
    "workers": workers_config,
    "sink": sink_config,
    "traces": traces_config,
    "follower": partial(follower_config, trust="0" * 64),  # the key is made by the start that this comes before
    "trainer": _trainer_config,
    "vllm": vllm_command,
}


def check_options(settings: Settings, parts: Collection[str]) -> None:
    """Make the configuration of each of ``parts`` that somebody set an option of, addresses assumed where they follow
    from a start. ``parts`` are also the names that there are.

    Raises :class:`StackError` naming every option that is unknown or wrong.
    """
    if unknown := sorted(set(settings.options) - {*_CONFIGURATIONS, *WITHOUT_OPTIONS}):
        raise StackError(
            f"--set (HEADRACE_OPTIONS) names {', '.join(unknown)}, which is no part: the parts with options are "
            f"{', '.join(_CONFIGURATIONS)}."
        )
    here = f"http://{HOST}:1"
    assumed = {"kafka": f"{HOST}:1", "clickhouse": here, "vllm": here, "otlp": here, "vllm_port": 1}
    there = settings.model_copy(
        update={name: value for name, value in assumed.items() if getattr(settings, name) is None}
    )
    problems = []
    for name in sorted(set(settings.options) & {*parts, *WITHOUT_OPTIONS}):
        if not settings.options[name]:
            continue
        if name in WITHOUT_OPTIONS:
            problems.append(f"--set (HEADRACE_OPTIONS): {name} has no options, only settings: `headrace settings`.")
            continue
        try:
            _CONFIGURATIONS[name](there)
        except StackError as error:
            problems.append(str(error))
    if problems:
        raise StackError("\n".join(problems))
