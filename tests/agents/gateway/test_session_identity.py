"""The session of a request: the first source that holds, bounded, with its name."""

from typing import Any

import pytest

from headrace.agents.gateway.session_identity import (
    MAX_SESSION,
    Arrival,
    SessionIdentity,
    Source,
    identify,
    scope_of,
)

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
CLAUDE = {"x-claude-code-session-id": "c1"}
CODEX = {"session-id": "x1", "thread-id": "x1", "x-codex-window-id": "x1:2"}


def found(
    headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, **arrival: Any
) -> SessionIdentity | None:
    return identify(Arrival(headers or {}, **arrival), body or {})


STRONGEST_FIRST: list[tuple[Source, dict[str, Any]]] = [
    (Source.URL, {"url_session": "u1"}),
    (Source.KEY, {"key_session": "k1"}),
    (Source.CLAUDE_CODE, {"headers": CLAUDE}),
    (Source.CODEX, {"headers": CODEX}),
    (Source.OPENCODE, {"headers": {"x-opencode-session": "o1"}}),
    (Source.SESSION_HEADER, {"headers": {"x-session-id": "h1"}}),
    (Source.SESSION_HEADER, {"headers": {"x-session-affinity": "h2"}}),
    (Source.USER_ID_SESSION, {"body": {"metadata": {"user_id": "user_ab_account_cd_session_0f1e2d3c-aaaa"}}}),
    (Source.CACHE_KEY, {"headers": {"user-agent": "codex_cli_rs/0.169"}, "body": {"prompt_cache_key": "p1"}}),
    (Source.TRACE, {"headers": {"traceparent": TRACE}}),
    (Source.CACHE_KEY_HINT, {"headers": {"user-agent": "python"}, "body": {"prompt_cache_key": "p1"}}),
    (Source.USER_ID, {"body": {"metadata": {"user_id": "customer 7"}}}),
]


@pytest.mark.parametrize(("source", "given"), STRONGEST_FIRST)
def test_each_source_is_recorded(source: Source, given: dict[str, Any]) -> None:
    identity = found(**given)
    assert identity is not None
    assert identity.source is source


@pytest.mark.parametrize("at", range(len(STRONGEST_FIRST)))
def test_the_strongest_source_wins(at: int) -> None:
    merged: dict[str, Any] = {"headers": {}, "body": {}}
    for _, given in reversed(STRONGEST_FIRST[at:]):
        for name, value in given.items():
            merged[name] = merged.get(name, {}) | value if isinstance(value, dict) else value
    identity = found(**merged)
    assert identity is not None
    assert identity.source is STRONGEST_FIRST[at][0]


def test_nothing_names_no_session() -> None:
    assert found() is None
    assert found(body={"metadata": None, "prompt_cache_key": 7}) is None


@pytest.mark.parametrize("value", ["", "x" * (MAX_SESSION + 1), "a\x1fb", "a\nb", "\ud800", "\x7f"])
def test_a_value_that_is_empty_too_long_or_not_printable_is_absent(value: str) -> None:
    assert found({"x-session-id": value}, {"prompt_cache_key": value}, url_session=value) is None
    assert found({"x-session-id": "x" * MAX_SESSION}) is not None


def test_sub_agents_of_claude_code_share_the_session() -> None:
    main = found(CLAUDE)
    sub = found(CLAUDE | {"x-claude-code-agent-id": "a1"})
    nested = found(CLAUDE | {"x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"})
    assert main is not None
    assert sub is not None
    assert nested is not None
    assert (main.scope, main.parent_scope) == ("c1", None)
    assert (sub.session_id, sub.agent, sub.parent_scope) == ("c1", "a1", main.scope)
    assert nested.parent_scope == sub.scope
    assert len({main.scope, sub.scope, nested.scope}) == 3


def test_sub_agents_of_codex_are_threads_of_the_session() -> None:
    sub = found(CODEX | {"thread-id": "x2", "x-codex-parent-thread-id": "x1"})
    nested = found(CODEX | {"thread-id": "x3", "x-codex-parent-thread-id": "x2"})
    assert sub is not None
    assert nested is not None
    assert (sub.session_id, sub.agent, sub.parent_scope) == ("x1", "x2", "x1")
    assert nested.parent_scope == sub.scope


def test_codex_may_send_all_of_it_as_metadata() -> None:
    metadata = '{"session_id": "x1", "thread_id": "x2", "parent_thread_id": "x1", "window_number": 3}'
    identity = found({"x-codex-turn-metadata": metadata})
    assert identity == SessionIdentity("x1", Source.CODEX, "x2", "x1", window=3)


@pytest.mark.parametrize("metadata", ["", "{", "[1]", "{" * 5000, '{"session_id": 7}', '{"session_id": ""}'])
def test_metadata_that_cannot_be_read_is_absent(metadata: str) -> None:
    assert found({"x-codex-turn-metadata": metadata}) is None


@pytest.mark.parametrize(
    ("window", "number"), [("x1:2", 2), ("x1:", None), ("x1:-1", None), ("x1:²", None), ("x1:" + "9" * 20, None)]
)
def test_the_window_of_codex_is_a_number(window: str, number: int | None) -> None:
    identity = found(CODEX | {"x-codex-window-id": window})
    assert identity is not None
    assert identity.window == number


def test_sub_agents_of_opencode_have_sessions_of_their_own() -> None:
    sub = found({"x-session-id": "ses_b", "x-parent-session-id": "ses_a"})
    main = found({"x-session-id": "ses_a"})
    assert sub is not None
    assert main is not None
    assert sub.parent_scope == main.scope


def test_a_session_in_the_url_keeps_sub_agents_apart() -> None:
    main = found(CLAUDE, url_session="u1")
    sub = found(CLAUDE | {"x-claude-code-agent-id": "a1"}, url_session="u1")
    opencode = found({"x-session-id": "ses_b", "x-parent-session-id": "ses_a"}, url_session="u1")
    assert main is not None
    assert sub is not None
    assert opencode is not None
    assert (main.scope, sub.scope, sub.parent_scope) == ("u1", scope_of("u1", "a1"), "u1")
    assert (opencode.scope, opencode.parent_scope) == (scope_of("u1", "ses_b"), "u1")


def test_claude_code_may_write_its_session_into_the_user_id() -> None:
    for user_id in ("user_ab_account__session_0f1e2d3c-aaaa", '{"device_id": "d", "session_id": "0f1e2d3c-aaaa"}'):
        identity = found(body={"metadata": {"user_id": user_id}})
        assert identity == SessionIdentity("0f1e2d3c-aaaa", Source.USER_ID_SESSION)


def test_only_sources_that_several_conversations_may_share_are_hints() -> None:
    assert {source for source in Source if source.is_hint} == {Source.TRACE, Source.CACHE_KEY_HINT, Source.USER_ID}


@pytest.mark.parametrize(
    ("header", "retry"), [("0", 0), ("2", 2), ("", 0), ("-1", 0), ("x", 0), ("²", 0), ("9" * 9, 0)]
)
def test_retries_are_counted_by_the_client_s_sdk(header: str, retry: int) -> None:
    assert Arrival({"x-stainless-retry-count": header}).retry == retry


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        ("claude-cli/2.1.330 (external, cli)", "claude-code"),
        ("codex_exec/0.169.0 (Debian)", "codex"),
        ("opencode/1.18.33 ai-sdk", "opencode"),
        ("OpenAI/Python 3.54.0", None),
        ("my-claude-cli/1", None),
        ("", None),
    ],
)
def test_known_clients_are_told_by_their_user_agent(agent: str, client: str | None) -> None:
    assert Arrival({"user-agent": agent}).client == client
