"""Settings: their sources, and errors for wrong ones."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings, base_model_dir, configured, load_settings, parse_options
from headrace.deploy.errors import StackError
from headrace.schemas.kafka.security import FIELDS, KafkaSecurity, process_security, variable
from headrace.schemas.redaction import redacted


@dataclass(frozen=True)
class PartConfig:
    bootstrap: str
    folder: Path
    learning_rate: float = 1.0
    steps: int | None = None


def test_precedence_is_command_line_environment_file_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('run = "file"\nkafka = "file:1"\nlog_level = "debug"\n[options.trainer]\nsteps = 3\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_RUN", "environment")
    monkeypatch.setenv("HEADRACE_KAFKA", "environment:1")
    settings = load_settings(run="command-line", kafka=None)
    assert (settings.run, settings.kafka, settings.log_level) == ("command-line", "environment:1", "debug")
    assert settings.options == {"trainer": {"steps": 3}}
    assert settings.vllm is None


def test_a_worker_gets_the_stacks_settings_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(data="somewhere", kafka="a:1", options={"trainer": {"steps": 3, "loss": "cispo"}})
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


def test_the_data_folder_is_absolute_and_contains_the_object_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    assert settings.data == tmp_path / ".headrace"
    assert settings.objects == f"file://{tmp_path}/.headrace/objects"
    assert load_settings(store_url="s3://bucket/x").objects == "s3://bucket/x"


def test_the_base_model_is_next_to_the_reference_agent() -> None:
    assert base_model_dir().parts[-3:] == ("agents", "search", "base")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("HEADRACE_KAFKA_PORT", "many", "HEADRACE_KAFKA_PORT is 'many'"),
        ("HEADRACE_VLLM_PORT", "70000", "HEADRACE_VLLM_PORT is '70000'"),
        ("HEADRACE_CONFIG", "/no/such/file.toml", "HEADRACE_CONFIG names /no/such/file.toml"),
        ("HEADRACE_OPTIONS", "{", "settings cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StackError, match=expected):
        load_settings()


def test_a_setting_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("kafkaa = 'x'\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    with pytest.raises(StackError, match="no setting HEADRACE_KAFKAA"):
        load_settings()


def test_options_of_a_part_are_converted_to_the_types_of_its_configuration() -> None:
    options = parse_options(("trainer.learning_rate=1e-3", "trainer.steps=60", "sink.group=sink-2"))
    assert options == {"trainer": {"learning_rate": 0.001, "steps": 60}, "sink": {"group": "sink-2"}}
    settings = load_settings(options=options)
    config = configured(settings, "trainer", PartConfig, bootstrap="a:1", folder=Path("x"))
    assert config == PartConfig("a:1", Path("x"), 0.001, 60)


def test_an_option_of_an_option_is_named_by_its_path() -> None:
    options = parse_options(("trainer.optimizer.learning_rate=1e-6", "trainer.optimizer.name=muon", "trainer.seed=1"))
    assert options == {"trainer": {"optimizer": {"learning_rate": 1e-6, "name": "muon"}, "seed": 1}}


def test_options_can_be_arguments_of_a_function() -> None:
    def start(port: int, threads: int = 1) -> tuple[int, int]:
        return port, threads

    settings = load_settings(options={"engine": {"threads": "4"}})
    assert configured(settings, "engine", start, port=1) == (1, 4)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            "trainer.step=1",
            r"trainer \(--set, HEADRACE_OPTIONS\): there is no option step. .*steps\? .*learning_rate, steps",
        ),
        ("trainer.steps=many", r"trainer \(--set, HEADRACE_OPTIONS\): steps is \"many\". Allowed: whole number"),
    ],
)
def test_a_wrong_option_is_named(assignment: str, expected: str) -> None:
    settings = load_settings(options=parse_options((assignment,)))
    with pytest.raises(StackError, match=expected):
        configured(settings, "trainer", PartConfig, bootstrap="a:1", folder=Path("x"))


@pytest.mark.parametrize("assignment", ["steps=1", "trainer.steps", ".steps=1", "trainer.=1", "trainer..steps=1"])
def test_an_assignment_needs_part_option_and_value(assignment: str) -> None:
    with pytest.raises(StackError, match=r"OPTION=VALUE"):
        parse_options((assignment,))


@pytest.mark.parametrize("assignment", ["steps=1", "trainer.steps"])
def test_an_assignment_without_a_part_or_a_value_is_answered_with_an_example(assignment: str) -> None:
    with pytest.raises(StackError, match=r"--set takes PART\.OPTION=VALUE, for example trainer\.steps=60"):
        parse_options((assignment,))


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().run = "other"  # type: ignore[misc]


def test_tls_and_sasl_of_kafka_are_settings_and_reach_the_clients_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FIELDS:  # restored at the end: load_settings adds to the environment
        monkeypatch.setenv(variable(name), "")
    file = tmp_path / "headrace.toml"
    file.write_text(
        'kafka_security_protocol = "SASL_PLAINTEXT"\nkafka_sasl_mechanism = "SCRAM-SHA-256"\n'
        'kafka_sasl_username = "file"\nkafka_sasl_password = "s3cret-of-the-file"\n'
    )
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_KAFKA_SASL_USERNAME", "environment")
    settings = load_settings()
    assert "s3cret" not in repr(settings)
    assert redacted("the s3cret-of-the-file is") == "the *** is"
    assert process_security() == KafkaSecurity(
        "SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="environment",
        sasl_password="s3cret-of-the-file",
    )
    child = {name: value for name, value in settings.environment().items() if name in settings.secures_kafka}
    assert child == {name: os.environ[name] for name in settings.secures_kafka}
    assert len(child) == 4


def test_every_setting_of_the_clients_is_a_setting() -> None:
    assert {variable(name) for name in FIELDS} <= {f"HEADRACE_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"HEADRACE_KAFKA_SASL_PASSWORD": "s3cret"}, r"HEADRACE_KAFKA_SASL_PASSWORD is set, but .* is PLAINTEXT"),
        (
            {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL", "HEADRACE_KAFKA_SSL_CA_FILE": "none.pem"},
            r"HEADRACE_KAFKA_SSL_CA_FILE names /.*none.pem, which cannot be read",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_of_security_are_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StackError, match=message):
        load_settings()
