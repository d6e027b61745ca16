"""Real servers with a tiny chat model: vLLM with parsers of reasoning and tool calls, and one that only renders."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agents.gateway.tiny_chat_model import MAX_LENGTH, make_chat_model
from tests.conftest import CACHE, Engine, running_vllm

PARSERS = (
    *("--tool-call-parser", "hermes"),
    *("--reasoning-parser", "qwen3"),
    "--enable-auto-tool-choice",
)


@pytest.fixture(scope="session")
def chat_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny chat model."""
    return make_chat_model(tmp_path_factory.mktemp("chat-model"))


@pytest.fixture(scope="session")
def chat_vllm(chat_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM on the tiny chat model, one per session."""
    from headrace.deploy.processes.vllm_server import VllmConfig, engine_command
    from headrace.deploy.system.ports import HOST, free_port

    port = free_port()
    argv, env = engine_command(
        VllmConfig(chat_model_dir, host=HOST, port=port, cache_dir=CACHE / "vllm", max_model_len=MAX_LENGTH)
    )
    argv += [*PARSERS, "--return-tokens-as-token-ids", "--enable-prompt-tokens-details"]
    with running_vllm(argv, env, port, tmp_path_factory.mktemp("chat-vllm")) as url:
        yield Engine(url, chat_model_dir)


@pytest.fixture(scope="session")
def render_server(chat_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """``vllm launch render`` on the tiny chat model."""
    with rendering(chat_model_dir, tmp_path_factory.mktemp("render"), MAX_LENGTH) as engine:
        yield engine


@pytest.fixture(scope="session")
def parserless_render_server(chat_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The same without parsers."""
    with rendering(chat_model_dir, tmp_path_factory.mktemp("parserless"), MAX_LENGTH, parsers=()) as engine:
        yield engine


@contextmanager
def rendering(
    model_dir: Path, folder: Path, max_length: int, *, parsers: tuple[str, ...] = PARSERS
) -> Iterator[Engine]:
    """A server that renders and tokenizes, without a model in memory. ``folder`` takes its log."""
    from headrace.deploy.processes.vllm_server import SERVED_NAME, VllmConfig, engine_command
    from headrace.deploy.system.ports import HOST, free_port

    port = free_port()
    _, env = engine_command(VllmConfig(model_dir, host=HOST, port=port, cache_dir=CACHE / "vllm"))
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.render.entry"),
        *("--model", str(model_dir)),
        *("--served-model-name", SERVED_NAME),
        *("--host", HOST),
        *("--port", str(port)),
        *("--max-model-len", str(max_length)),
        *("--generation-config", "vllm"),
        *parsers,
    ]
    with running_vllm(argv, env, port, folder) as url:
        yield Engine(url, model_dir)
