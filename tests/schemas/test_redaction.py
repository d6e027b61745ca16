"""A password of any printable character is hidden in every text that shows settings, known to the process or not."""

import json
import logging
import time
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from headrace.deploy.commands.settings import command as settings_command
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.log_format import LogFormatter
from headrace.deploy.stack.state import PartStatus, StackState, State, address_of
from headrace.deploy.terminal import error_text, print_redacted
from headrace.schemas.objects.store_url import scheme_of
from headrace.schemas.redaction import (
    HIDDEN,
    forget_secrets,
    redacted,
    redacted_address,
    redacted_values,
    remember_secret,
    remember_secrets,
)
from headrace.streams.clickhouse.database import open_client

SECRET = "cAnArY7x"
PRINTABLE = [*map(chr, range(0x20, 0x7F))]
PASSWORDS = [f"se{each}{SECRET}" for each in PRINTABLE] + [
    f"{''.join(PRINTABLE)}{SECRET}",
    f"a@b@{SECRET}",
    f"p@ss'{SECRET}",
    f"a\"b c'd@e/{SECRET}",
    f"{'p' * 3000}{SECRET}",
    f"%40{SECRET}",
]


def url(password: str) -> str:
    return f"http://analyst:{password}@ch.example:8123"


@pytest.mark.parametrize("password", PASSWORDS)
def test_an_address_as_a_whole_value_is_parsed(password: str) -> None:
    assert redacted_address(url(password)) == "http://***@ch.example:8123"
    assert redacted_values({"a": [url(password)]}) == {"a": ["http://***@ch.example:8123"]}
    query = f"https://h/?user=a&password={password.replace('&', '').replace('#', '')}&database=x"
    if "@" not in password:
        assert redacted_address(query) == "https://h/?user=a&password=***&database=x"


@pytest.mark.parametrize("password", [each for each in PASSWORDS if "://" not in each])
@pytest.mark.parametrize("around", ["{}", "'{}'", '"{}"', "at {}, next", "({})", "x={}", "[{}]", "{} and mail a@b.org"])
def test_an_address_in_prose_is_hidden_whatever_its_password_holds(password: str, around: str) -> None:
    shown = redacted(around.format(url(password)))
    assert SECRET not in shown
    assert redacted(shown) == shown


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    "shown_as", ["{}", "{!r}", "it is{}there", "Code: 516. DB::Exception: {}: wrong password"], ids=str
)
def test_secrets_from_settings_are_hidden_anywhere(password: str, shown_as: str) -> None:
    remember_secrets({"clickhouse": url(password)})
    for text in (shown_as.format(password), json.dumps({"said": shown_as.format(password)})):
        assert SECRET not in redacted(text)
    assert SECRET not in redacted(f"u:{password}@ch.example")


def show_state(address: str) -> str:
    external = PartStatus(State.EXTERNAL, address, None, 0, None, None)
    state = StackState(1, "r", "d", "file:///x", True, {"clickhouse": external, "vllm": external})
    return json.dumps(state.as_json())


def show_log(address: str) -> str:
    return LogFormatter("%(message)s").format(logging.LogRecord("x", 30, "f", 1, "ClickHouse at %s", (address,), None))


def show_settings(address: str) -> str:
    result = CliRunner().invoke(settings_command, env={"HEADRACE_CLICKHOUSE": address})
    return result.output + error_text(result.exception or "")


def show_settings_as_json(address: str) -> str:
    result = CliRunner().invoke(settings_command, ["--json"], env={"HEADRACE_CLICKHOUSE": address})
    return result.output + error_text(result.exception or "")


def show_settings_error(address: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_VLLM", address.replace("http:", "ftp:"))
        with pytest.raises(StackError) as raised:
            load_settings()
    return error_text(raised.value)


def show_line(address: str) -> str:
    return CliRunner().invoke(_told, [address]).output


def show_database_error(address: str) -> str:
    with pytest.raises(ValueError, match="ClickHouse address") as raised:
        open_client(address.replace("http:", "ftp:"))
    return str(raised.value)


def show_store_error(address: str) -> str:
    with pytest.raises(ValueError, match="store_url") as raised:
        scheme_of(address.replace("http:", "s3:"))
    return str(raised.value)


@click.command()
@click.argument("address")
def _told(address: str) -> None:
    print_redacted(f"  clickhouse  {address}")


SURFACES = [
    show_state, show_log, show_settings, show_settings_as_json, show_settings_error, show_line, show_database_error,
    show_store_error,
]  # fmt: skip


@pytest.mark.parametrize("show", SURFACES, ids=lambda show: show.__name__)
def test_no_surface_shows_any_part_of_a_password(show: Callable[[str], str]) -> None:
    for password in PASSWORDS:
        forget_secrets()
        if show in (show_log, show_line):
            remember_secrets(url(password))  # as load_settings does before anything is logged
        shown = show(url(password))
        assert shown
        assert SECRET not in shown, (password, shown)


def test_settings_of_environment_command_line_and_file_are_remembered(tmp_path, monkeypatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('otlp = "http://u:file-s3cret@h:1"\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_OPTIONS", '{"workers": {"judge_password": "option-s3cret"}}')
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws/s3cret")
    load_settings(clickhouse="http://u:line-s3cret@h:1", data=str(tmp_path))
    address_of("vllm", "http://u:given-s3cret@h:1", str(tmp_path))
    for secret in ("file-s3cret", "option-s3cret", "aws/s3cret", "line-s3cret", "given-s3cret"):
        assert redacted(f"it said «{secret}».") == "it said «***»."


def test_the_working_directory_of_a_shell_is_no_secret(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("OLDPWD", str(tmp_path))
    monkeypatch.setenv("MYSQL_PWD", "my-s3cret")
    load_settings(data=str(tmp_path))
    assert redacted(f"{tmp_path} my-s3cret") == f"{tmp_path} ***"


def test_an_address_is_not_refused_because_of_other_secrets() -> None:
    remember_secret("/data/s3cret")
    assert scheme_of("file:///data/s3cret/objects") == "file"


def test_a_password_that_is_a_word_redacts_no_other_text() -> None:
    remember_secrets("http://headrace:headrace@h:1")
    remember_secret("123456")
    assert redacted("headrace.streams: 1234567 events") == "headrace.streams: 1234567 events"
    assert redacted("(headrace:headrace@h)") == "(***@h)"


@pytest.mark.parametrize(
    "text",
    [
        f"token={SECRET}",
        f"X-ClickHouse-Key: {SECRET}",
        f"{{'X-ClickHouse-Key': '{SECRET}'}}",
        f"Authorization: {SECRET}",
        f"authorization=Token {SECRET}",
        f"Proxy-Authorization: Digest {SECRET}",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"private_key: -----BEGIN EC PRIVATE KEY-----\n{SECRET}\n",
        f'{{"password":"a\\"{SECRET}"}}',
        f"password='it\\'s {SECRET}'",
        json.dumps(json.dumps({"password": f'a"b\\{SECRET}', "x": 1})),
        f"password=it's{SECRET}",
        f"https://h/?password=it's{SECRET}",
    ],
)
def test_secrets_in_prose_are_found_by_their_form(text: str) -> None:
    shown = redacted(f"{text}\nand on")
    assert SECRET not in shown
    assert HIDDEN in shown
    assert redacted(shown) == shown
    if "BEGIN EC" not in text:
        assert shown.endswith("\nand on")


def test_a_setting_called_authorization_is_secret_and_a_folder_of_secrets_is_not() -> None:
    shown = redacted_values({"authorization": SECRET, "X-ClickHouse-Key": SECRET, "clickhouse_secrets": "/data/s"})
    assert shown == {"authorization": HIDDEN, "X-ClickHouse-Key": HIDDEN, "clickhouse_secrets": "/data/s"}


@pytest.mark.parametrize(
    "text",
    [
        "token=7 of 9, token: <tool_call>, next token: generated",
        "http://host:8123: refused, ask a@b.org",
        "http://[::1]:8123/ said a@b.org",
        '{"url": "http://host:8123", "owner": "a@b.org"}',
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "://", "://a:b", "://a:", "://@", ":// ", "@", "a@", "a:b@", ",a:a", "?key", "&a", "?a=", "password",
        'password="', 'password=\\"', "password='\\", "authorization: ", "x-", "x-key", "token=a", "token",
        "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "bearer ", "[::1", "://[::", "\\",
    ],
)  # fmt: skip
def test_redaction_takes_time_linear_in_the_text(piece: str) -> None:
    remember_secrets("http://user:s3cret-s3cret@h")

    def seconds(size: int) -> float:
        best = float("inf")
        for end in ("", "@", "="):
            text = piece * (size // len(piece)) + end
            for _ in range(2):
                begun = time.process_time()
                redacted(text)
                best = min(best, time.process_time() - begun)
        return best

    # 16 times the text: a quadratic search takes 256 times as long.
    assert seconds(320_000) < 64 * seconds(20_000) + 0.05
