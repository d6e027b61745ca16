"""The official clients' own test suites against the gateway, and beside it against the vLLM behind it.

``pytest -m clients -k suites`` prints the comparison. A test that ceases to pass fails here, and so does one that
begins to pass, until it is no longer listed.
"""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.agents.gateway.clients.gateway_process import Launcher, running_process
from tests.agents.gateway.clients.suites import SUITE_S, SUITES, run_suite, table
from tests.conftest import Engine

pytestmark = [pytest.mark.clients, pytest.mark.vllm, pytest.mark.timeout(2 * SUITE_S)]

NEVER_MADE = "the response of the documents' example was never made: 404"

FAILS = {
    "openai": {
        "chat completions: method_create_with_all_params_*": "functions is refused, not ignored; max_tokens is 0, and "
        "logit_bias names a token that is no number, which vLLM refuses",
        "completions: method_create_with_all_params_*": "echo and suffix together, which vLLM refuses",
        "responses: *_create_overload_*": "no model and no input, which vLLM refuses",
        "responses: method_create_with_all_params_*": "a conversation and a prompt stored at OpenAI, which neither has",
        "responses: method_compact_with_all_params": "previous_response_id of a response that was never made",
        "responses: *retrieve*": NEVER_MADE,
        "responses: *_delete": NEVER_MADE,
    },
    "anthropic": {
        "*messages: method_create_with_all_params_*": "a JSON schema and tools together, of which vLLM cannot make a "
        "grammar; its stream begins with status 200 and then has the error, which the test does not read",
    },
}
"""Tests of each suite that fail, with the reason: what no engine can do, or what the gateway refuses by design."""


@pytest.mark.parametrize("client", SUITES)
async def test_an_official_client_s_own_tests_pass(
    client: str, long_vllm: Engine, launcher: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = SUITES[client]
    (tmp_path / "vllm").mkdir()
    theirs = await run_suite(suite, long_vllm.url, tmp_path / "vllm")
    async with running_process(tmp_path / "gateway", long_vllm.url, launcher) as gateway:
        ours = await run_suite(suite, gateway.url, tmp_path / "gateway")
    with capsys.disabled():
        print(f"\n\n{table(suite.client, ours, theirs)}\n")
    failing = {name for name, test in ours.items() if not test.passes}
    expected = {name for name in ours if any(fnmatch(name, pattern) for pattern in FAILS[client])}
    assert failing == expected
    # Where vLLM passes a test that the gateway fails, only a stream's error may be the reason.
    assert {name for name in failing if theirs[name].passes} <= {
        name for name in failing if name.endswith("messages: method_create_with_all_params_overload_2")
    }
    assert all(any(fnmatch(name, pattern) for name in failing) for pattern in FAILS[client])
