"""A server that renders with a model whose context holds the prompts of environments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.gateway.conftest import rendering
from tests.agents.gateway.tiny_chat_model import make_chat_model
from tests.conftest import Engine

MAX_LENGTH = 16_384


@pytest.fixture(scope="session")
def environment_render(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """``vllm launch render``, with templates and parsers of the Qwen3 family."""
    texts = [(Path(__file__).parents[3] / "README.md").read_text()]
    folder = tmp_path_factory.mktemp("environment-model")
    make_chat_model(folder, max_length=MAX_LENGTH, texts=texts, vocab_size=1_024)
    with rendering(folder, tmp_path_factory.mktemp("environment-render"), MAX_LENGTH) as engine:
        yield engine
