"""Servers with a model whose context holds the prompts of real programs, which have tens of thousands of tokens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.gateway.clients.gateway_process import Launcher, launching
from tests.agents.gateway.conftest import PARSERS, rendering
from tests.agents.gateway.tiny_chat_model import make_chat_model
from tests.conftest import CACHE, Engine, running_vllm

MAX_LENGTH = 131_072
VOCABULARY = 4_096
"""Tokens of the tokenizer: a few characters each, so that prompts are as long as with a real model."""

MAX_NEW_TOKENS = 24
"""Longest answer of the live engine, whatever a client asks for: its model speaks nonsense and seldom ends."""

NAMES = ("policy", "gpt-6-astra", "gpt-3.5-turbo-instruct", "claude-opus-5-5", "model", "model_id")
"""Names under which the live engine serves the model: ours, and those of the official clients' own tests."""


@pytest.fixture(scope="session")
def long_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model whose tokenizer has learned the English of this repository's pages."""
    texts = [page.read_text() for page in sorted(Path(__file__).parents[4].glob("*.md"))]
    folder = tmp_path_factory.mktemp("long-chat-model")
    return make_chat_model(folder, max_length=MAX_LENGTH, texts=texts, vocab_size=VOCABULARY)


@pytest.fixture(scope="session")
def launcher(long_model_dir: Path) -> Iterator[Launcher]:
    """Starts gateways for that model."""
    with launching(long_model_dir) as process:
        yield process


@pytest.fixture(scope="session")
def long_render_server(long_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """``vllm launch render`` on that model."""
    with rendering(long_model_dir, tmp_path_factory.mktemp("long-render"), MAX_LENGTH) as engine:
        yield engine


@pytest.fixture(scope="session")
def long_vllm(long_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A live vLLM on that model."""
    from headrace.deploy.processes.vllm_server import VllmConfig, engine_command
    from headrace.deploy.system.ports import HOST, free_port

    port = free_port()
    argv, env = engine_command(
        VllmConfig(
            long_model_dir, host=HOST, port=port, cache_dir=CACHE / "vllm", max_model_len=MAX_LENGTH, max_num_seqs=8
        )
    )
    argv += [*PARSERS, "--enable-prompt-tokens-details", "--served-model-name", *NAMES]
    argv += ["--override-generation-config", json.dumps({"max_new_tokens": MAX_NEW_TOKENS})]
    with running_vllm(argv, env, port, tmp_path_factory.mktemp("long-vllm")) as url:
        yield Engine(url, long_model_dir)
