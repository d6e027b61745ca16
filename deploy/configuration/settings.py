"""The settings of the local stack and of every worker process, read once at start.

In order of precedence: the command line, HEADRACE_* environment variables, the TOML file that HEADRACE_CONFIG names,
the defaults. Every setting of a worker can be an environment variable, so a worker runs the same way under
``headrace up``, systemd and Kubernetes:

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

from headrace.deploy.configuration.environment import unknown_variables
from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer
from headrace.deploy.errors import StackError
from headrace.deploy.terminal import print_line
from headrace.schemas.http_address import http_address
from headrace.schemas.kafka.address import kafka_address
from headrace.schemas.kafka.security import FIELDS, KafkaSecurityError, security_from, tls_context, variable
from headrace.schemas.redaction import remember_secrets
from headrace.schemas.safe_text import redacted_values

PREFIX = "HEADRACE_"
CONFIG = "HEADRACE_CONFIG"
OF_COMMANDS = frozenset({"HEADRACE_GATEWAY", "HEADRACE_GATEWAY_KEY"})
"""Variables that are options of commands, not settings of processes."""

_REPORTED: set[str] = set()
"""Messages about the environment that this process has printed."""

ConfigT = TypeVar("ConfigT")
Port = Annotated[int, Field(ge=1, le=65535)]
HttpAddress = Annotated[str, AfterValidator(http_address)]
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


def run_name(name: str) -> str:
    """Returns ``name``; raises ``ValueError`` if it is not the name of a run."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError("which is not up to 100 letters, digits, dots, dashes and underscores")
    return name


def _store_address(text: str) -> str:
    from headrace.schemas.objects.store_url import scheme_of

    scheme_of(text)
    return text


def _level(name: str) -> str:
    if name.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("which is none of debug, info, warning, error")
    return name.lower()


def base_model_dir() -> Path:
    """Returns the folder of the base model that ships with the reference agent."""
    return Path(__file__).parents[2] / "agents" / "search" / "base"


class Settings(BaseSettings):
    """The settings of a process. The environment variable of a field is HEADRACE_NAME."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )

    data: Folder = Path(".headrace")
    """Data folder: Kafka's log, ClickHouse's tables, weights, checkpoints, logs."""
    cache: Folder = Path("~/.cache/headrace")
    """Cache folder: files that can be downloaded, compiled or computed again."""

    kafka: Annotated[str, AfterValidator(kafka_address)] | None = None
    """Bootstrap address (host:port) of an external Kafka; unset: the stack starts one."""
    kafka_security_protocol: str | None = None
    """How to connect to an external Kafka: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL; unset: PLAINTEXT."""
    kafka_ssl_ca_file: Folder | None = None
    """PEM file of the authorities with which the broker's certificate is checked; unset: the system's."""
    kafka_ssl_certificate_file: Folder | None = None
    """PEM file of the certificate with which processes identify themselves to the broker; unset: none."""
    kafka_ssl_key_file: Folder | None = None
    """PEM file of that certificate's private key; unset: it is in the certificate's file."""
    kafka_ssl_key_password: str | None = Field(default=None, repr=False)
    """Password of the private key, if it is encrypted."""
    kafka_sasl_mechanism: str | None = None
    """How to log in, with SASL_PLAINTEXT and SASL_SSL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    kafka_sasl_username: str | None = None
    """User of the external Kafka."""
    kafka_sasl_password: str | None = Field(default=None, repr=False)
    """Password of this user."""
    clickhouse: HttpAddress | None = None
    """HTTP address (http://host:port) of an external ClickHouse; unset: the stack starts an embedded one."""
    clickhouse_secrets: Folder | None = None
    """Folder of the embedded ClickHouse's passwords, one private file per account: reader, writer. They are created at
    its first start; unset: DATA/clickhouse-secrets. Sink and dashboard log in with them if the address names no user;
    set it if you start them one by one."""
    vllm: HttpAddress | None = None
    """HTTP address of an external vLLM with headrace's plugin; unset: the stack starts one."""
    store_url: Annotated[str, AfterValidator(_store_address)] | None = None
    """Object store for the weights (file://, s3://, gs://, az://); unset: DATA/objects."""

    kafka_port: Port | None = None
    """Port of the Kafka that the stack starts; unset: a free port, which later starts reuse."""
    kafka_controller_port: Port | None = None
    """Port of its KRaft controller; unset: a free port, which later starts reuse."""
    clickhouse_port: Port | None = None
    """Port of the ClickHouse that the stack starts; unset: a free port, which later starts reuse."""
    vllm_port: Port | None = None
    """Port of the vLLM that the stack starts; unset: a free port, which later starts reuse."""
    gateway_port: Port | None = None
    """Port of the gateway; unset: a free port, which later starts reuse."""
    otlp_port: Port | None = None
    """Port of the OTLP receiver (`headrace worker otlp`), usually 4318."""
    dashboard_port: Port | None = None
    """Port of the dashboard; unset: a free port, which later starts reuse."""
    metrics_ports: Mapping[str, Port] = {}
    """Ports on which workers answer Prometheus, by part: {"assemble": 9464}. The local stack adds free ports."""
    otlp: HttpAddress | None = None
    """Address of an OpenTelemetry collector (OTLP over HTTP, http://host:4318) for metrics and spans; unset: none."""

    run: Annotated[str, AfterValidator(run_name)] = "default"
    """Name of the training run."""
    member: str | None = None
    """Stable name of this process among its replicas, such as a pod name in a StatefulSet: after a crash it gets its
    partitions back immediately. The local stack sets it."""
    model_dir: Folder = Field(default_factory=base_model_dir)
    """Base model (Hugging Face directory): the model that vLLM serves first and that training starts from."""
    options: Mapping[str, Mapping[str, Any]] = {}
    """Options of the parts, by part and option: {"trainer": {"seed": 7}}."""

    kafka_heap_mb: int = Field(default=512, ge=128)
    """Java heap of the Kafka that the stack starts, in MiB."""
    min_free_memory_mb: NonNegativeInt | None = None
    """Memory that must be free before a start, in MiB; unset: the sum of the parts' estimates."""
    min_free_disk_mb: NonNegativeInt = 2048
    """Space that must be free in DATA before a start, in MiB."""
    start_timeout_s: PositiveFloat = 300.0
    """Time limit for a part to become ready, in seconds."""
    stop_grace_s: PositiveFloat = 15.0
    """Time limit for a part to stop before it is killed, in seconds."""
    max_restarts: NonNegativeInt = 5
    """Restarts of a part within a minute before it counts as failed."""
    max_log_mb: int = Field(default=50, ge=1)
    """Size in MiB beyond which a part's log is moved to LOG.1."""
    log_level: Annotated[str, AfterValidator(_level)] = "info"
    """Lowest severity in a worker's log: debug, info, warning, error."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, *_: Any, **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """Returns the sources in order of precedence: command line, environment, TOML file."""
        file = os.environ.get(CONFIG)
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(file))) if file else sources

    @property
    def objects(self) -> str:
        """The URL of the object store."""
        return self.store_url or (self.data / "objects").as_uri()

    @property
    def signing_key(self) -> Path:
        """The file of the key with which the trainer on this data folder signs versions; the follower trusts it."""
        return self.data / "keys" / "trainer.pem"

    @property
    def secrets_of_embedded(self) -> Path:
        """The folder of the passwords of the embedded ClickHouse."""
        return self.clickhouse_secrets or self.data / "clickhouse-secrets"

    @property
    def logs(self) -> Path:
        """The folder of the parts' logs."""
        return self.data / "logs"

    def required_address(self, name: str) -> str:
        """Returns the address in the setting ``name``; raises :class:`StackError` if it is not set."""
        address: str | None = getattr(self, name)
        if address is None:
            raise StackError(f"A worker needs the address of its {name}: set {PREFIX}{name.upper()}.")
        return address

    def required_port(self, name: str) -> int:
        """Returns the port in the setting ``name``; raises :class:`StackError` if it is not set."""
        port: int | None = getattr(self, name)
        if port is None:
            raise StackError(f"A worker needs a port to listen on: set {PREFIX}{name.upper()}.")
        return port

    @property
    def secures_kafka(self) -> tuple[str, ...]:
        """The variables of TLS and SASL that are set."""
        return tuple(variable(name) for name in FIELDS if getattr(self, f"kafka_{name}") is not None)

    def environment(self) -> dict[str, str]:
        """Returns these settings as environment variables for a child process."""
        shown = self.model_dump(mode="json", exclude_none=True)
        return {
            PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
            for name, value in shown.items()
        }


def load_settings(**overrides: Any) -> Settings:
    """Returns the settings of this process; ``overrides`` (command line) take precedence, except for ``None`` values.

    Raises :class:`StackError` that names every wrong setting.
    """
    # Secrets are registered first, so that no error message shows them.
    remember_secrets(dict(os.environ))
    remember_secrets(overrides)
    file = os.environ.get(CONFIG)
    if file and not Path(file).is_file():
        raise StackError(f"{CONFIG} names {file}, which is not a file.")
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise StackError("\n".join(_problem(problem) for problem in error.errors(include_url=False))) from error
    except ValueError as error:  # Malformed TOML, or malformed JSON in a variable.
        raise StackError(f"The settings cannot be read: {error}") from error
    remember_secrets(settings.model_dump(mode="json"))  # Those from the TOML file.
    _secure_kafka(settings)
    _report_unknown_variables()
    return settings


def _secure_kafka(settings: Settings) -> None:
    """Check the settings of TLS and SASL, and put those from the TOML file into the environment, which the clients and
    child processes read: see :func:`headrace.schemas.kafka.security.process_security`."""
    secured = settings.secures_kafka
    given = {name: value for name, value in settings.environment().items() if name in secured}
    try:
        tls_context(security_from(given))
    except KafkaSecurityError as error:
        raise StackError(str(error)) from error
    os.environ.update(given)


def _report_unknown_variables() -> None:
    """Print unknown HEADRACE_* variables on standard error, once per process."""
    known = {CONFIG, *OF_COMMANDS, *(PREFIX + name.upper() for name in Settings.model_fields)}
    for sentence in unknown_variables(os.environ, PREFIX, known):
        if sentence not in _REPORTED:
            _REPORTED.add(sentence)
            print_line(sentence, err=True)


def _problem(problem: Mapping[str, Any]) -> str:
    name = "__".join(str(step) for step in problem["loc"]).upper()
    if problem["type"] == "extra_forbidden":
        return f"There is no setting {PREFIX}{name}: `headrace settings` lists them."
    why = f": {problem['msg']}"
    if problem["type"] == "value_error":  # Raised by one of the validators above.
        message = str(problem["ctx"]["error"])
        why = f", {message}" if message.startswith("which") else f": {message}"
    return f"{PREFIX}{name} is {redacted_values(problem['input'])!r}{why}."


def configured(settings: Settings, part: str, make: Callable[..., ConfigT], **values: Any) -> ConfigT:
    """Returns ``make(**values)`` with the options for ``part`` in ``settings``, which take precedence over ``values``.

    ``make`` is a configuration's dataclass or a function; option values are converted to its types. Raises
    :class:`StackError` that names an unknown option or an option with a wrong value, and for a port, which others must
    know, too.
    """
    source, options = f"{part} (--set, HEADRACE_OPTIONS)", settings.options.get(part, {})
    if "port" in options and "port" in values:
        raise StackError(f"{source}: port is not set here: set HEADRACE_{part.upper()}_PORT, which all parts read.")
    if isinstance(make, type):
        made: ConfigT = read_configuration(make, [Layer(part, values), Layer(source, options)], strict=False)
        return made
    known = inspect.signature(make).parameters
    for name in options:
        if name not in known:
            raise StackError(f"{source}: there is no option {name}. Options: {', '.join(known)}.")
    try:
        return validate_call(make)(**(values | dict(options)))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(map(str, problem["loc"]))
        raise StackError(f"{source}: {name} is {redacted_values(problem['input'])!r}: {problem['msg']}.") from error


def parse_options(assignments: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns ``("trainer.kl.coefficient=0.01", …)`` as nested options by part.

    Raises :class:`StackError` if an assignment is not PART.OPTION=VALUE.
    """
    for assignment in assignments:
        name, equals, _ = assignment.partition("=")
        if "." not in name or not equals:
            raise StackError(f"--set takes PART.OPTION=VALUE, for example trainer.steps=60, not {assignment!r}.")
    return dict(set_layer(assignments).values) or None
