"""The settings of the local stack and of every worker process, read once at the edge.

From the command line, else HEADRACE_* environment variables, else the TOML file that HEADRACE_CONFIG names, else the
defaults. Everything that a worker needs can stand in its environment, so a worker runs the same under ``headrace up``,
systemd and Kubernetes:

    HEADRACE_KAFKA=broker:9092 HEADRACE_OPTIONS='{"sink": {"group": "sink-2"}}' headrace worker sink
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, ValidationError, validate_call
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from headrace.deploy.configuration.addresses import http_address, kafka_address, store_address
from headrace.deploy.configuration.environment import unknown_variables
from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer
from headrace.deploy.errors import StackError
from headrace.deploy.terminal import print_line
from headrace.schemas.redaction import remember_secrets
from headrace.schemas.safe_text import redacted_values

PREFIX = "HEADRACE_"
CONFIG = "HEADRACE_CONFIG"

_REPORTED: set[str] = set()
"""Sentences about the environment that this process has printed."""

ConfigT = TypeVar("ConfigT")
Port = Annotated[int, Field(ge=1, le=65535)]
HttpAddress = Annotated[str, AfterValidator(http_address)]
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def _run(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError("which is not up to 100 letters, digits, dots, dashes and underscores")
    return name


def _level(name: str) -> str:
    if name.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("which is none of debug, info, warning, error")
    return name.lower()


def base_model_dir() -> Path:
    """The base model that is shipped with the reference agent."""
    return Path(__file__).parents[2] / "agents" / "search" / "base"


class Settings(BaseSettings):
    """One frozen object per process. A name here is HEADRACE_NAME in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    data: Folder = Path(".headrace")
    """Folder for everything that is kept: Kafka's log, ClickHouse's tables, weights, checkpoints, logs."""
    cache: Folder = Path("~/.cache/headrace")
    """Folder for what can be downloaded, compiled or counted again."""

    kafka: Annotated[str, AfterValidator(kafka_address)] | None = None
    """Bootstrap address (host:port) of a Kafka that you have; unset: one is started."""
    clickhouse: HttpAddress | None = None
    """HTTP address (http://host:port) of a ClickHouse that you have; unset: an embedded one is started."""
    clickhouse_secrets: Folder | None = None
    """Folder of the embedded ClickHouse's passwords, one private file an account: reader, writer. They are made at its
    first start; unset: DATA/clickhouse-secrets. Sink and dashboard log in with them where the address names no user;
    set it where they are started one by one."""
    vllm: HttpAddress | None = None
    """HTTP address of a vLLM that you have, with headrace's plugin; unset: one is started."""
    store_url: Annotated[str, AfterValidator(store_address)] | None = None
    """Object store of the weights (file://, s3://, gs://, az://); unset: DATA/objects."""

    kafka_port: Port | None = None
    """Port of the Kafka that is started; unset: a free one, remembered."""
    kafka_controller_port: Port | None = None
    """Port of its KRaft controller; unset: a free one, remembered."""
    clickhouse_port: Port | None = None
    """Port of the ClickHouse that is started; unset: a free one, remembered."""
    vllm_port: Port | None = None
    """Port of the vLLM that is started; unset: a free one, remembered."""
    dashboard_port: Port | None = None
    """Port of the dashboard; unset: a free one, remembered."""
    metrics_ports: Mapping[str, Port] = {}
    """Ports on which workers answer Prometheus, by part: {"assemble": 9464}. The local stack fills in free ones."""
    otlp: HttpAddress | None = None
    """Address of an OpenTelemetry collector (OTLP over HTTP, http://host:4318) for metrics and spans; unset: none."""

    run: Annotated[str, AfterValidator(_run)] = "default"
    """Name of the training run."""
    member: str | None = None
    """Name of this process among its like, as a pod's in a StatefulSet: after a crash it has its partitions back at
    once. The local stack sets it."""
    model_dir: Folder = Field(default_factory=base_model_dir)
    """Base model (Hugging Face directory): what vLLM serves first and the trainer starts from."""
    options: Mapping[str, Mapping[str, Any]] = {}
    """Settings of single parts, by part and field of its configuration: {"trainer": {"seed": 7}}."""

    kafka_heap_mb: int = Field(default=512, ge=128)
    """Java heap of the Kafka that is started, in MiB."""
    min_free_memory_mb: NonNegativeInt | None = None
    """Memory that must be free before a start, in MiB; unset: the sum of the parts' estimates."""
    min_free_disk_mb: NonNegativeInt = 2048
    """Space that must be free in DATA before a start, in MiB."""
    start_timeout_s: PositiveFloat = 300.0
    """How long one part may take to serve, in seconds."""
    stop_grace_s: PositiveFloat = 15.0
    """How long a part may take to end before it is killed, in seconds."""
    max_restarts: NonNegativeInt = 5
    """How often a part that died is started again within a minute before it counts as failed."""
    max_log_mb: int = Field(default=50, ge=1)
    """A part's log is moved to LOG.1 beyond this size, in MiB."""
    log_level: Annotated[str, AfterValidator(_level)] = "info"
    """Least severe message in a worker's log: debug, info, warning, error."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, *_: Any, **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """Command line, environment, TOML file: in this order."""
        file = os.environ.get(CONFIG)
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(file))) if file else sources

    @property
    def objects(self) -> str:
        """URL of the object store."""
        return self.store_url or (self.data / "objects").as_uri()

    @property
    def signing_key(self) -> Path:
        """The key that the trainer on this data folder signs versions with, and that the follower on it trusts."""
        return self.data / "keys" / "trainer.pem"

    @property
    def secrets_of_embedded(self) -> Path:
        """Folder of the passwords of a ClickHouse that is started."""
        return self.clickhouse_secrets or self.data / "clickhouse-secrets"

    @property
    def logs(self) -> Path:
        """Folder of the parts' logs."""
        return self.data / "logs"

    def required_address(self, name: str) -> str:
        """The address in the setting ``name``; raises :class:`StackError` where it is not set."""
        address: str | None = getattr(self, name)
        if address is None:
            raise StackError(f"A worker needs the address of its {name}: set {PREFIX}{name.upper()}.")
        return address

    def required_port(self, name: str) -> int:
        """The port in the setting ``name``; raises :class:`StackError` where it is not set."""
        port: int | None = getattr(self, name)
        if port is None:
            raise StackError(f"A worker needs a port to listen on: set {PREFIX}{name.upper()}.")
        return port

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, for a child process."""
        shown = self.model_dump(mode="json", exclude_none=True)
        return {
            PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in shown.items()
        }


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process; ``overrides`` (command line) win, ``None`` among them counts as not given.

    Raises :class:`StackError` naming each setting that is wrong.
    """
    # Before anything can be said of them.
    remember_secrets(dict(os.environ))
    remember_secrets(overrides)
    file = os.environ.get(CONFIG)
    if file and not Path(file).is_file():
        raise StackError(f"{CONFIG} names {file}, which is not a file.")
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise StackError("\n".join(_problem(problem) for problem in error.errors(include_url=False))) from error
    except ValueError as error:  # Malformed TOML, malformed JSON in a variable.
        raise StackError(f"The settings cannot be read: {error}") from error
    remember_secrets(settings.model_dump(mode="json"))  # what a file holds of them
    _report_unknown_variables()
    return settings


def _report_unknown_variables() -> None:
    """Print on standard error, once a process, which variables are no settings."""
    known = {CONFIG, *(PREFIX + name.upper() for name in Settings.model_fields)}
    for sentence in unknown_variables(os.environ, PREFIX, known):
        if sentence not in _REPORTED:
            _REPORTED.add(sentence)
            print_line(sentence, err=True)


def _problem(problem: Mapping[str, Any]) -> str:
    name = "__".join(str(step) for step in problem["loc"]).upper()
    if problem["type"] == "extra_forbidden":
        return f"There is no setting {PREFIX}{name}: `headrace settings` lists them."
    why = f": {problem['msg']}"
    if problem["type"] == "value_error":  # raised by one of our validators
        message = str(problem["ctx"]["error"])
        why = f", {message}" if message.startswith("which") else f": {message}"
    return f"{PREFIX}{name} is {redacted_values(problem['input'])!r}{why}."


def configured(settings: Settings, part: str, make: Callable[..., ConfigT], **values: Any) -> ConfigT:
    """``make(**values)`` with the options that ``settings`` hold for ``part``, which win over ``values``.

    ``make`` is a configuration's dataclass or a function; option values are converted to the types it asks for. Raises
    :class:`StackError` naming an option that it does not have, or whose value does not fit.
    """
    source, options = f"{part} (--set, HEADRACE_OPTIONS)", settings.options.get(part, {})
    if isinstance(make, type):
        made: ConfigT = read_configuration(make, [Layer(part, values), Layer(source, options)], strict=False)
        return made
    known = inspect.signature(make).parameters
    for name in options:
        if name not in known:
            raise StackError(f"{source}: there is no option {name}. Options there are: {', '.join(known)}.")
    try:
        return validate_call(make)(**(values | dict(options)))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"]))
        raise StackError(f"{source}: {name} is {redacted_values(problem['input'])!r}: {problem['msg']}.") from error


def parse_options(assignments: tuple[str, ...]) -> dict[str, Any] | None:
    """``("trainer.kl.coefficient=0.01", …)`` as nested options by part.

    Raises :class:`StackError` where an assignment is not PART.OPTION=VALUE.
    """
    for assignment in assignments:
        if "." not in assignment.partition("=")[0]:
            raise StackError(f"--set takes PART.OPTION=VALUE, as in trainer.steps=60, not {assignment!r}.")
    return dict(set_layer(assignments).values) or None
