"""The key that signs versions: created once, private; a signature is valid for one statement only."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from headrace.schemas.records.weights import Weights
from headrace.trainer.weights.signing import (
    SigningKey,
    SigningKeyError,
    is_signed_by,
    load_or_create_key,
    require_public_key,
    statement,
)

POINTER = Weights(
    run="run", version=3, parent=2, kind="anchor", manifest_uri="file:///o/m", sha256="0" * 64, size=7, step=3
)


@pytest.fixture(scope="module")
def key():
    return SigningKey(Ed25519PrivateKey.generate())


def test_a_key_is_created_once_with_a_private_mode_and_stays_the_same(tmp_path):
    before = os.umask(0)
    try:
        made = load_or_create_key(tmp_path / "keys" / "trainer.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys" / "trainer.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert load_or_create_key(tmp_path / "keys" / "trainer.pem").public == made.public
    assert [file.name for file in (tmp_path / "keys").iterdir()] == ["trainer.pem"]
    require_public_key(made.public)


def test_processes_that_create_a_key_together_all_have_the_same(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(load_or_create_key, [tmp_path / "keys" / "trainer.pem"] * 64))
    assert len({key.public for key in made}) == 1


def test_an_invalid_key_file_is_refused_and_kept(tmp_path):
    file = tmp_path / "key.pem"
    file.write_text("nothing")
    file.chmod(0o600)
    with pytest.raises(SigningKeyError, match="not a private key"):
        load_or_create_key(file)
    assert file.read_text() == "nothing"
    other = generate_private_key(SECP256R1())
    file.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(SigningKeyError, match="Ed25519"):
        load_or_create_key(file)


def test_a_folder_that_is_not_writable_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SigningKeyError, match="signing_key"):
        load_or_create_key(tmp_path / "file" / "key.pem")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o666])
def test_a_key_that_others_can_read_or_write_is_refused(tmp_path, mode):
    file = tmp_path / "key.pem"
    made = load_or_create_key(file)
    file.chmod(mode)
    with pytest.raises(SigningKeyError, match="chmod 600"):
        load_or_create_key(file)
    file.chmod(0o400)
    assert load_or_create_key(file).public == made.public


def test_a_signature_is_valid_for_its_key_alone(key):
    signed = key.sign(POINTER)
    assert is_signed_by(signed, key.public)
    assert not is_signed_by(signed, SigningKey(Ed25519PrivateKey.generate()).public)
    assert not is_signed_by(POINTER, key.public)
    for nonsense in ("", "zz", "0" * 64, signed.signature.upper(), signed.signature[:-2]):
        assert not is_signed_by(signed.model_copy(update={"signature": nonsense}), key.public)
    for nonsense in ("", "f" * 64, "0" * 63):
        assert not is_signed_by(signed, nonsense)


@pytest.mark.parametrize(
    "changed",
    [
        {"run": "other"},
        {"version": 4},
        {"parent": 1},
        {"parent": None},
        {"kind": "delta"},
        {"sha256": "1" * 64},
        {"size": 8},
        {"step": 4},
    ],
)
def test_a_signature_is_valid_only_for_the_signed_record(key, changed):
    assert not is_signed_by(key.sign(POINTER).model_copy(update=changed), key.public)


def test_the_signed_statement_omits_only_the_manifests_address_and_the_signature():
    fields = set(Weights.model_fields) - {"manifest_uri", "signature", "signed_by"}
    for name in fields:
        changed = POINTER.model_copy(update={name: "else" if isinstance(getattr(POINTER, name), str) else 99})
        assert statement(changed) != statement(POINTER), name
