"""Misspelt variables are reported with the most similar setting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.deploy.configuration.environment import unknown_variables

KNOWN = ("HEADRACE_KAFKA", "HEADRACE_CONFIG", "HEADRACE_OPTIONS", "HEADRACE_STORE_URL", "HEADRACE_VLLM_PORT")


def warnings(**environment: str) -> list[str]:
    return unknown_variables(environment, "HEADRACE_", KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HEADRACE_KAFKAA", "did you mean HEADRACE_KAFKA?"),
        ("HEADRACE_STORE", "did you mean HEADRACE_STORE_URL?"),
        ("headrace_storeurl", "did you mean HEADRACE_STORE_URL?"),
        ("HEADRACE_OPTION__trainer__steps", "did you mean HEADRACE_OPTIONS?"),
        ("HEADRACE_LEARNING_RATE", "`headrace settings` lists"),
    ],
)
def test_an_unknown_variable_is_reported_with_the_most_similar_setting(name: str, meant: str) -> None:
    (sentence,) = warnings(**{name: "x", "HEADRACE_KAFKA": "broker:9092", "PATH": "/bin"})
    assert sentence.startswith(f"The environment variable {name} is not a setting")
    assert meant in sentence
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_KAFKA", "broker:9092"),
        ("headrace_kafka", "broker:9092"),
        ("HEADRACE_OPTIONS__trainer__steps", "3"),
        ("HEADRACE_KAFKAA", ""),
        ("KAFKA", "x"),
        ("HEADRACE_TRAINER_SERVICE_HOST", "10.0.0.7"),
        ("HEADRACE_TRAINER_SERVICE_PORT_HTTP", "80"),
        ("HEADRACE_TRAINER_PORT", "tcp://10.0.0.7:80"),
        ("HEADRACE_TRAINER_PORT_80_TCP_ADDR", "10.0.0.7"),
    ],
)
def test_settings_and_the_variables_of_kubernetes_are_not_reported(name: str, value: str) -> None:
    assert warnings(**{name: value}) == []


def test_a_command_reports_it_once_on_standard_error_and_continues(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment |= {"HEADRACE_DATA": str(tmp_path), "HEADRACE_KAFKAA": "secret-host:9092"}
    argv = [sys.executable, "-m", "headrace.deploy.cli", "keys"]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, len(ended.stdout.strip())) == (0, 64)
    assert ended.stderr.count("did you mean HEADRACE_KAFKA?") == 1
    assert "secret-host" not in ended.stderr
