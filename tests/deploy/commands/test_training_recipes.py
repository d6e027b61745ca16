"""The commands in the headers of the shipped settings files: each parses, and together they fit the file."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from headrace.deploy.cli import cli
from headrace.deploy.configuration.settings import Settings, load_settings, parse_options
from headrace.deploy.processes.gateway import gateway_config
from headrace.deploy.processes.options import check_options
from headrace.deploy.processes.registry import PROCESSES, stack_processes
from headrace.deploy.processes.train import trainer_config
from headrace.deploy.processes.vllm_server import Device
from headrace.trainer.config import TrainerConfig

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "deploy" / "training").glob("*.toml"))
RUNNABLE = [file for file in RECIPES if file.stem not in ("search-cispo", "swarm-kimi")]
"""Those with the commands of a run; the others name a file that has them."""
PLACEHOLDERS = {"PUBLIC_KEY": "0" * 64}


class Command(NamedTuple):
    """A command line."""

    variables: dict[str, str]
    words: list[str]

    @property
    def text(self) -> str:
        return shlex.join(self.words)

    @property
    def of_headrace(self) -> list[str]:
        """The words after ``headrace``, also of a command that torchrun starts; empty for other programs."""
        if self.words[0] == "headrace":
            return self.words[1:]
        if self.words[0] == "torchrun":
            return self.words[self.words.index("headrace.deploy.cli") + 1 :]
        return []


def commands(file: Path) -> list[Command]:
    """The command lines in the header of ``file``."""
    head = file.read_text().partition("\n\n")[0]
    lines = "\n".join(line[4:] for line in head.splitlines() if line.startswith("#   "))
    found = []
    for line in lines.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for name, value in PLACEHOLDERS.items():
            words = [word.replace(name, value) for word in words]
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        found.append(Command(variables, words[len(variables) :]))
    return found


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command of headrace that ``words`` name, and its arguments."""
    found: click.Command = cli
    context = click.Context(cli)
    while isinstance(found, click.Group):
        following = found.get_command(context, words[0])
        assert following is not None, f"there is no command {words[0]}"
        found, words = following, words[1:]
    return found, words


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command of headrace; files that earlier commands write need not exist."""
    command, arguments = command_of(words)
    return command.make_context("command", list(arguments), resilient_parsing=True).params


def assert_parses(words: list[str]) -> None:
    command, arguments = command_of(words)
    try:
        command.make_context("command", list(arguments))
    except click.BadParameter as error:
        if "does not exist" not in error.message:  # else an earlier command writes it
            raise


def of_kind(file: Path, name: str) -> Iterator[tuple[Command, dict[str, Any]]]:
    for command in commands(file):
        if command.of_headrace[:1] == [name]:
            yield command, parsed(command.of_headrace)


def stack_of(file: Path) -> Settings:
    """The settings of the stack that the header starts."""
    ((command, options),) = of_kind(file, "up")
    names = ("run", "model_dir", "store_url", "kafka", "vllm", "clickhouse", "data")
    assert {name for name in command.variables if name.startswith("HEADRACE_")} <= {
        "HEADRACE_KAFKA_PORT", "HEADRACE_GATEWAY_PORT", "HEADRACE_VLLM_PORT",
    }  # fmt: skip
    return load_settings(
        options=parse_options(options["assignments"]),
        **{name: options[name] for name in names},
        **{name.removeprefix("HEADRACE_").lower(): int(v) for name, v in command.variables.items() if "PORT" in name},
    )


def trainer_of(file: Path) -> TrainerConfig:
    """The settings of the trainer that the header starts; without ``--kafka`` they are refused."""
    ((_, options),) = of_kind(file, "train")
    assert ROOT / options["file"] == file
    given = {name: options[name] for name in ("kafka", "run", "data")}
    return trainer_config(load_settings(**given), ROOT / options["file"], options["assignments"])


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_command_in_a_header_parses(file: Path) -> None:
    found = commands(file)
    if file not in RUNNABLE:
        assert not found
        assert re.search(r"([\w.-]+\.toml) has a model, and all commands of a run", file.read_text())
        return
    for command in found:
        match command.words:
            case ["python", "-m", module, *options]:
                import_module(module).parser().parse_args(options)
            case ["torchrun", "--nproc-per-node", ranks, "-m", "headrace.deploy.cli", "train", *_]:
                visible = command.variables.get("CUDA_VISIBLE_DEVICES")
                assert visible is None or len(visible.split(",")) == int(ranks)
                assert_parses(command.of_headrace)
            case ["headrace", *_]:
                assert_parses(command.of_headrace)
            case ["cat", *_]:
                pass
            case _:
                pytest.fail(f"{command.text}: neither headrace, torchrun nor python -m")


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_stack_and_trainer_of_a_header_have_the_same_run_model_store_and_kafka(file: Path) -> None:
    stack, trainer = stack_of(file), trainer_of(file)
    assert stack.run == trainer.run
    assert stack.objects == trainer.store_url
    assert stack.model_dir.expanduser() == trainer.model_dir
    assert stack.signing_key == trainer.signing_key
    assert trainer.bootstrap == (stack.kafka or f"127.0.0.1:{stack.kafka_port}")
    check_options(stack, PROCESSES, {process.name for process in stack_processes()})


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_engine_and_trainer_compute_on_different_gpus(file: Path) -> None:
    if trainer_of(file).device == "cpu":
        assert "device" not in stack_of(file).options.get("vllm", {})
        return
    assert stack_of(file).options["vllm"]["device"] == Device.CUDA
    ((up, _),), ((train, _),) = of_kind(file, "up"), of_kind(file, "train")
    if stack_of(file).kafka is None:  # one machine
        of_engine, of_trainer = (set(each.variables["CUDA_VISIBLE_DEVICES"].split(",")) for each in (up, train))
        assert not of_engine & of_trainer


@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.stem)
def test_samplers_of_a_header_ask_the_same_stack_for_the_budget_of_the_same_run(file: Path) -> None:
    stack = stack_of(file)
    kafka = stack.kafka or f"127.0.0.1:{stack.kafka_port}"
    for command in commands(file):
        if command.of_headrace[:1] == ["environment"]:
            options = parsed(command.of_headrace)
        elif command.words[:2] == ["python", "-m"]:
            options = vars(import_module(command.words[2]).parser().parse_args(command.words[3:]))
        else:
            continue
        assert (options["run"], options["kafka"]) == (stack.run, kafka)
        if "gateway" in options:
            assert options["gateway"] == f"http://127.0.0.1:{stack.gateway_port}"
        else:
            assert options["vllm"] == f"http://127.0.0.1:{stack.vllm_port}"
        if "attempts" in options or "group_size" in options:
            timeout_s = options.get("timeout_s") or options["timeout"]
            assert stack.options["workers"]["group_timeout_s"] > timeout_s
        if "group_size" in options:  # its sessions wait for a place
            assert stack.options["gateway"]["idle_s"] > options["timeout_s"]


def test_the_context_of_search_holds_the_programs_budget_and_its_answer() -> None:
    (file,) = [file for file in RUNNABLE if file.stem == "search-qwen3-8b"]
    (command,) = [each for each in commands(file) if each.words[:2] == ["python", "-m"]]
    options = import_module(command.words[2]).parser().parse_args(command.words[3:])
    assert stack_of(file).options["vllm"]["max_model_len"] >= options.budget + options.answer_tokens
    assert trainer_of(file).max_tokens_per_pass >= options.budget + options.answer_tokens


@pytest.mark.parametrize("name", ["coder-qwen3-4b", "swarm-qwen3-1.7b"])
def test_engines_of_agents_with_tools_have_parsers_that_the_gateway_gets(name: str) -> None:
    (file,) = [file for file in RUNNABLE if file.stem == name]
    stack = stack_of(file)
    addresses = {"kafka": "b:1", "vllm": "http://v:1", "gateway_port": 1}
    config = gateway_config(stack.model_copy(update=addresses))
    assert (config.tool_parser, config.reasoning_parser) == ("hermes", "qwen3")
    assert stack.options["vllm"]["max_model_len"] >= 32_768
