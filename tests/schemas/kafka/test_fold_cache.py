"""A kept fold is read back unchanged or refused."""

import os
import stat
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest
import zstandard
from pydantic import create_model

from headrace.schemas.kafka import fold_cache
from headrace.schemas.kafka.bookmarks import Bookmark
from headrace.schemas.kafka.fold_cache import FoldIdentity, UnusableFoldError, digest_of, read_fold, write_fold
from headrace.schemas.model import Record

IDENTITY = FoldIdentity("ledger", "some/cluster", "c0de")
MARKS = {"events": {0: Bookmark(7, "ab"), 11: Bookmark(2**40, "cd")}, "steps": {}}


def test_a_kept_fold_is_read_back_and_private(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "folds"
    assert read_fold(folder, IDENTITY) is None
    assert write_fold(folder, IDENTITY, MARKS, b"state\nof bytes\x00")
    assert read_fold(folder, IDENTITY) == (MARKS, b"state\nof bytes\x00")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_each_cluster_and_fold_has_its_own_file(tmp_path: Path) -> None:
    write_fold(tmp_path, IDENTITY, MARKS, b"one")
    write_fold(tmp_path, replace(IDENTITY, cluster="other"), {}, b"two")
    write_fold(tmp_path, replace(IDENTITY, name="import"), {}, b"three")
    assert read_fold(tmp_path, IDENTITY) == (MARKS, b"one")


def test_a_fold_of_other_code_is_refused(tmp_path: Path) -> None:
    write_fold(tmp_path, IDENTITY, MARKS, b"one")
    with pytest.raises(UnusableFoldError, match="another release"):
        read_fold(tmp_path, replace(IDENTITY, code="new"))


def test_the_code_digest_covers_every_byte(tmp_path: Path) -> None:
    one, other = tmp_path / "a.py", tmp_path / "b.py"
    found = set()
    for first, second in ((b"xy", b"z"), (b"x", b"yz"), (b"xy", b"")):
        one.write_bytes(first)
        other.write_bytes(second)
        found.add(digest_of(str(one), str(other)))
    assert len(found) == 3


def test_the_code_digest_covers_the_values_of_an_enum_that_a_model_holds() -> None:
    """A release reads records with a new value that the release before it counted as unreadable."""

    class Reason(StrEnum):
        STALE = "stale"

    class LaterReason(StrEnum):
        STALE = "stale"
        EXPIRED = "expired"

    def rejection(reason: type[StrEnum]) -> type[Record]:
        return create_model("Rejection", __base__=Record, reason=(reason, ...))

    LaterReason.__name__ = LaterReason.__qualname__ = "Reason"
    assert digest_of(models=[rejection(Reason)]) != digest_of(models=[rejection(LaterReason)])
    assert digest_of(models=[rejection(Reason)]) == digest_of(models=[rejection(Reason)])


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_torn_file_is_refused(tmp_path: Path, cut: int) -> None:
    write_fold(tmp_path, IDENTITY, MARKS, b"state")
    file = IDENTITY.file(tmp_path)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(UnusableFoldError):
        read_fold(tmp_path, IDENTITY)


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    write_fold(tmp_path, IDENTITY, MARKS, bytes(range(256)))
    file = IDENTITY.file(tmp_path)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            assert read_fold(tmp_path, IDENTITY) == (MARKS, bytes(range(256))), at
        except UnusableFoldError:
            continue


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"[]\n", b'{"name": "ledger", "cluster": "some/cluster"}\nx', b"\xff\n"]
)
def test_a_file_that_is_not_a_fold_is_refused(tmp_path: Path, content: bytes) -> None:
    IDENTITY.file(tmp_path).write_bytes(zstandard.compress(content))
    with pytest.raises(UnusableFoldError, match="damaged"):
        read_fold(tmp_path, IDENTITY)


def test_kept_folds_are_bounded_when_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fold(tmp_path, IDENTITY, MARKS, bytes(10_000))
    monkeypatch.setattr(fold_cache, "MAX_BYTES", 5_000)
    assert not write_fold(tmp_path, IDENTITY, MARKS, bytes(10_000))
    with pytest.raises(UnusableFoldError, match="size limit"):
        read_fold(tmp_path, IDENTITY)


def test_the_oldest_files_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_cache, "MAX_FILES", 3)
    identities = [replace(IDENTITY, cluster=str(number)) for number in range(5)]
    for age, identity in enumerate(identities):
        write_fold(tmp_path, identity, {}, b"")
        os.utime(identity.file(tmp_path), (1_000 + age, 1_000 + age))
    write_fold(tmp_path, IDENTITY, {}, b"")
    assert {path.name for path in tmp_path.iterdir()} == {
        each.file(tmp_path).name for each in (*identities[-2:], IDENTITY)
    }


def test_a_path_that_is_not_a_folder_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_fold(tmp_path / "file" / "folds", IDENTITY, MARKS, b"")
