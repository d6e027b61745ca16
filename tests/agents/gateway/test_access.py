"""Who may use the gateway: keys of tenants, keys of sessions, and what a session's key may reach."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.gateway import tenants as tenants_module
from headrace.agents.gateway.access import Access, access_of
from headrace.agents.gateway.canonical import BadRequest
from headrace.agents.gateway.client_errors import CallRefused
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.session_grants import (
    MAX_KEY,
    EndRequest,
    FeedbackRequest,
    SessionGrant,
    SessionRequest,
    is_foreign,
    key_of,
    new_session,
    open_key,
    read_request,
)
from headrace.agents.gateway.tenants import DEFAULT, KeysUnusable, Tenants, follow_keys, read_tenants
from headrace.schemas.events import Role
from tests.agents.gateway.scripted_engine import until

SEALER = Sealer([b"0123456789abcdef"])
NOW_S = 1_790_000_000.0


def keys_file(folder: Path, *keys: dict[str, Any]) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    acme = {"tenant": "acme", "sample_rate": 0.5, "consent": False, "unmatched_root_role": "trainable"}
    return read_tenants(
        keys_file(
            tmp_path,
            {"sha256": hashed("key-a"), **acme},
            {"sha256": hashed("key-a2"), **acme},
            {"sha256": hashed("key-ö"), "tenant": "other"},
        )
    )


def grant(tenant: str = "acme", session: str = "s1", expires_s: int = int(NOW_S) + 60, **asked: Any) -> SessionGrant:
    return SessionGrant(tenant=tenant, session=session, expires_s=expires_s, request=SessionRequest(**asked))


def access(tenants: Tenants, key: str, session: str | None = None, *, header: str = "authorization") -> Access:
    headers = {header: f"Bearer {key}" if header == "authorization" else key}
    return access_of(headers, session, tenants, SEALER, NOW_S)


def refusal(tenants: Tenants, key: str, session: str | None = None) -> ErrorKind:
    with pytest.raises(CallRefused) as refused:
        access(tenants, key, session)
    assert refused.value.error.message
    return refused.value.error.kind


def test_keys_have_tenants_with_their_settings(tenants: Tenants) -> None:
    assert not tenants.is_open
    for header in ("authorization", "x-api-key"):
        found = access(tenants, "key-a", header=header)
        assert (found.tenant.name, found.grant) == ("acme", None)
        assert (found.tenant.policy.sample_rate, found.tenant.policy.consent) == (0.5, False)
        assert found.tenant.policy.unmatched_root_role is Role.TRAINABLE
    assert access(tenants, "key-a2").tenant is access(tenants, "key-a").tenant
    assert access(tenants, "key-ö").tenant.name == "other"


def test_a_bearer_comes_before_another_kind_of_key(tenants: Tenants) -> None:
    both = {"authorization": "bearer key-a", "x-api-key": "key-ö"}
    assert access_of(both, None, tenants, SEALER, NOW_S).tenant.name == "acme"
    basic = {"authorization": "Basic a2V5", "x-api-key": "key-ö"}
    assert access_of(basic, None, tenants, SEALER, NOW_S).tenant.name == "other"


@pytest.mark.parametrize("key", ["", " ", "key", "KEY-A", "hrs_", "hrs_AAAA", "\udcff", "x" * 100_000])
def test_unknown_keys(tenants: Tenants, key: str) -> None:
    assert refusal(tenants, key) is ErrorKind.AUTHENTICATION


def test_without_a_file_every_key_is_accepted_but_no_forged_one() -> None:
    tenants = read_tenants(None)
    assert tenants.is_open
    assert access(tenants, "").tenant is DEFAULT
    assert access(tenants, "anything").tenant is DEFAULT
    assert refusal(tenants, "hrs_AAAA") is ErrorKind.AUTHENTICATION


def test_the_key_of_a_session(tenants: Tenants) -> None:
    key = key_of(SEALER, grant(task_id="t", task={"question": "why?"}, purpose="evaluate"))
    found = access(tenants, key)
    assert (found.tenant.name, found.arrival.key_session, found.arrival.url_session) == ("acme", "s1", None)
    assert found.grant == grant(task_id="t", task={"question": "why?"}, purpose="evaluate")
    assert access(tenants, key, "s1").arrival.url_session == "s1"
    assert refusal(tenants, key, "s2") is ErrorKind.PERMISSION
    assert refusal(tenants, key_of(SEALER, grant(tenant="gone"))) is ErrorKind.AUTHENTICATION
    assert refusal(tenants, key_of(SEALER, grant(expires_s=int(NOW_S)))) is ErrorKind.AUTHENTICATION


def test_no_changed_character_of_a_key_is_accepted() -> None:
    key = key_of(SEALER, grant())
    assert open_key(SEALER, key, NOW_S) is not None
    for at in range(4, len(key)):
        other = "A" if key[at] != "A" else "B"
        assert open_key(SEALER, key[:at] + other + key[at + 1 :], NOW_S) is None
    assert open_key(Sealer([b"another secret!!"]), key, NOW_S) is None


def test_a_session_of_the_gateway_belongs_to_a_tenant(tenants: Tenants) -> None:
    session = new_session(SEALER, "acme")
    assert session != new_session(SEALER, "acme")
    assert access(tenants, "key-a", session).arrival.url_session == session
    assert refusal(tenants, "key-ö", session) is ErrorKind.PERMISSION
    assert refusal(tenants, "key-a", session[:-1] + ("A" if session[-1] != "A" else "B")) is ErrorKind.PERMISSION
    assert not is_foreign(SEALER, "other", "an id of their own")


def test_a_key_that_fits_no_header_is_not_made() -> None:
    with pytest.raises(BadRequest, match=f"{MAX_KEY:,} fit a header"):
        key_of(SEALER, grant(task_id="漢" * 500, agent="漢" * 500, cohort_key="漢" * 500, group_id="漢" * 500))


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (SessionRequest, {"session": "a\x7fb"}, "session"),
        (SessionRequest, {"task": {"a": "x" * 2_048}}, "task"),
        (SessionRequest, {"task": []}, "task"),
        (SessionRequest, [], "body"),
        (EndRequest, {"status": "great"}, "status"),
        (EndRequest, {"outcome": float("nan")}, "outcome"),
        (EndRequest, {"outcome": "1"}, "outcome"),
        (FeedbackRequest, {}, "value"),
        (FeedbackRequest, {"value": float("inf")}, "value"),
        (FeedbackRequest, {"value": True}, "value"),
        (FeedbackRequest, {"value": 1, "comment": "x" * 4_097}, "comment"),
    ],
)
def test_what_a_request_may_not_say(kind: Any, body: Any, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_request(kind, body)
    assert refused.value.field == field


def test_a_field_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(BadRequest, match="outcom: is not a field of this request: expected status, outcome or answer"):
        read_request(EndRequest, {"outcom": 1.0})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[]", "the file: Input should be a valid dictionary"),
        ('{"keys": []}', "it has no key, so that every request would be refused"),
        (
            '{"keys": [{"sha256": "abc", "tenant": "a"}]}',
            r"keys\.0\.sha256: String should match pattern '[^']*'\. E",
        ),
        ('{"keys": [{"sha256": "' + "0" * 64 + '", "tenant": ""}]}', "tenant"),
        ('{"keys": [{"sha256": "' + "0" * 64 + '", "tenant": "a", "sample_rate": 2}]}', "sample_rate"),
        ('{"keys": [{"sha256": "' + "0" * 64 + '", "tenant": "a", "extra": 2}]}', "extra"),
    ],
)
def test_files_of_keys_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(KeysUnusable, match=says) as raised:
        read_tenants(path)
    assert "printf %s KEY | sha256sum" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(KeysUnusable, match="No such file"):
        read_tenants(tmp_path / "other.json")


def test_two_keys_of_a_tenant_have_the_same_settings(tmp_path: Path) -> None:
    keys = [{"sha256": f"{number:064}", "tenant": "a", "masked": bool(number)} for number in range(2)]
    with pytest.raises(KeysUnusable, match="different settings"):
        read_tenants(keys_file(tmp_path, *keys))


def test_a_key_has_one_tenant(tmp_path: Path) -> None:
    acme, other = ({"sha256": "0" * 64, "tenant": tenant} for tenant in ("acme", "other"))
    with pytest.raises(KeysUnusable, match="the tenants 'acme' and 'other' have the same key"):
        read_tenants(keys_file(tmp_path, acme | {"masked": True}, other))
    assert read_tenants(keys_file(tmp_path, acme, acme)).named("acme") is not None


def test_keys_are_replaced_and_tenants_keep_their_settings(tenants: Tenants, tmp_path: Path) -> None:
    before = access(tenants, "key-a").tenant
    session = key_of(SEALER, grant("other"))
    assert access(tenants, session).tenant.name == "other"
    found = read_tenants(
        keys_file(
            tmp_path,
            {"sha256": hashed("key-a3"), "tenant": "acme", "consent": True},
            {"sha256": hashed("key-n"), "tenant": "new", "masked": True},
        )
    )
    assert tenants.replace_keys(found) == ["acme"]
    for of_acme in ("key-a3", key_of(SEALER, grant("acme"))):
        assert access(tenants, of_acme).tenant is before
    assert access(tenants, "key-n").tenant.policy.masked
    assert tenants.is_masked("new")
    for withdrawn in ("key-a", "key-a2", "key-ö", session):
        assert refusal(tenants, withdrawn) is ErrorKind.AUTHENTICATION
    other = read_tenants(keys_file(tmp_path, {"sha256": hashed("key-ö"), "tenant": "other", "consent": False}))
    assert tenants.replace_keys(other) == ["other"]
    assert access(tenants, "key-ö").tenant.policy.consent  # as before it was withdrawn


def test_what_is_said_to_a_masked_tenant_stays_hidden_when_its_keys_are_withdrawn(tmp_path: Path) -> None:
    masked, shown, other = (
        {"sha256": hashed(name), "tenant": name, "masked": name == "masked"} for name in ("masked", "shown", "other")
    )
    tenants = read_tenants(keys_file(tmp_path, masked, shown, other))
    tenants.replace_keys(read_tenants(keys_file(tmp_path, other)))
    assert tenants.named("masked") is tenants.named("shown") is None
    assert tenants.is_masked("masked")  # feedback arrives later, with a token that has no key
    assert not tenants.is_masked("shown")
    # After a restart the settings are unknown.
    assert read_tenants(keys_file(tmp_path, other)).is_masked("masked")


def test_a_gateway_without_keys_gets_none_while_it_runs(tenants: Tenants) -> None:
    for one, other in ((Tenants(None), tenants), (tenants, Tenants(None))):
        with pytest.raises(ValueError, match="until it ends"):
            one.replace_keys(other)


@pytest.fixture
def one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the key ``one``, looked at often."""
    assert tenants_module.KEYS_EVERY_S <= 2  # as the README says
    monkeypatch.setattr(tenants_module, "KEYS_EVERY_S", 0.02)
    return keys_file(tmp_path, {"sha256": hashed("one"), "tenant": "acme"})


@asynccontextmanager
async def following(path: Path, tenants: Tenants) -> AsyncIterator[None]:
    task = asyncio.create_task(follow_keys(path, tenants))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


async def test_a_changed_file_is_read_again(one_key: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, tenants = one_key, read_tenants(one_key)
    async with following(path, tenants):
        keys_file(tmp_path, {"sha256": hashed("two"), "tenant": "acme", "masked": True})
        await until(lambda: tenants.of_key("two") is not None)
        assert tenants.of_key("one") is None
        assert not tenants.is_masked("acme")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"'acme' in {path} change when the gateway starts again" in caplog.text
        caplog.clear()
        for broken in (lambda: path.write_text("{"), path.unlink):
            broken()
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(0.1)
            assert [record.levelname for record in caplog.records] == ["ERROR"]  # once, however often it is looked at
            assert "The keys that were read last stay in use" in caplog.text
            assert tenants.of_key("two") is not None
            caplog.clear()
        keys_file(tmp_path, {"sha256": hashed("three"), "tenant": "acme"})
        await until(lambda: tenants.of_key("three") is not None)
        assert tenants.of_key("two") is None


async def test_a_file_of_the_same_size_and_time_is_read_again(one_key: Path) -> None:
    path, tenants = one_key, read_tenants(one_key)
    async with following(path, tenants):
        await asyncio.sleep(0.1)
        before = path.stat()
        with path.open("r+") as file:  # in one write: no moment in which the size differs
            file.write(json.dumps({"keys": [{"sha256": hashed("two"), "tenant": "acme"}]}))
            file.flush()
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a file system with coarse times has it
        await until(lambda: tenants.of_key("two") is not None)
        assert tenants.of_key("one") is None


async def test_a_file_that_could_not_be_read_for_a_while_is_read_again(
    one_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, tenants = one_key, read_tenants(one_key)
    keys_file(tmp_path, {"sha256": hashed("two"), "tenant": "acme"})

    def denied(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("os.open", denied)
        patch.setattr(Path, "read_bytes", denied)
        async with following(path, tenants):
            await until(lambda: "Permission denied" in caplog.text)
            await asyncio.sleep(0.1)
            assert len(caplog.records) == 1
            patch.undo()
            await until(lambda: tenants.of_key("two") is not None)


def _nested(path: Path) -> None:
    path.write_text("[" * 200_000)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space


BROKEN = [
    (_nested, "recursion"),
    (_pipe, "not a regular file"),
    (_endless, "not a regular file"),
    (_folder, "directory"),
    (_large, "larger than 16,777,216 bytes"),
]


@pytest.mark.parametrize(("broken", "why"), BROKEN)
def test_nothing_in_place_of_the_file_holds_the_start(broken: Callable[[Path], None], why: str, one_key: Path) -> None:
    broken(one_key)
    with pytest.raises(KeysUnusable, match=why):
        read_tenants(one_key)


async def test_an_empty_list_withdraws_the_last_key(
    one_key: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tenants = read_tenants(one_key)
    session = key_of(SEALER, grant())
    assert access(tenants, session).tenant.name == "acme"
    async with following(one_key, tenants):
        keys_file(tmp_path)
        await until(lambda: tenants.of_key("one") is None)
        assert refusal(tenants, "one") is ErrorKind.AUTHENTICATION
        assert refusal(tenants, session) is ErrorKind.AUTHENTICATION
        assert not tenants.is_open
        assert f"the list of keys in {one_key} is empty" in caplog.text
        keys_file(tmp_path, {"sha256": hashed("two"), "tenant": "acme"})
        await until(lambda: tenants.of_key("two") is not None)


@pytest.mark.parametrize(("broken", "why"), BROKEN)
async def test_nothing_in_place_of_the_file_ends_or_holds_the_gateway(
    broken: Callable[[Path], None],
    why: str,
    one_key: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, tenants = one_key, read_tenants(one_key)
    broken(path)
    async with following(path, tenants):
        await until(lambda: bool(caplog.records))
        await asyncio.sleep(0.1)
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert record.getMessage().startswith(f"the gateway's keys in {path} cannot be used: ")
        assert why in record.getMessage()
        assert tenants.of_key("one") is not None
        renewed = keys_file(tmp_path.parent, {"sha256": hashed("two"), "tenant": "acme"})
        if path.is_dir():
            path.rmdir()
        renewed.replace(path)
        await until(lambda: tenants.of_key("two") is not None)
