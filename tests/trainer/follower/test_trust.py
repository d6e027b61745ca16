"""Which records of ``weights`` a follower trusts, attack by attack."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.weights import Weights
from headrace.trainer.follower.alerts import WEIGHTS_GAP, WEIGHTS_UNTRUSTED
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.reconcile import Follower
from headrace.trainer.follower.trust import MAX_VERSION, problem_with
from headrace.trainer.follower.versions import KnownVersions, add_version, mark_fetched
from headrace.trainer.weights.signing import SigningKey
from tests.trainer.fake_engine import FakeEngine

KEY, OTHER = (SigningKey(Ed25519PrivateKey.generate()) for _ in range(2))
STORE = "s3://bucket/prefix"


def honest(version, *, key=KEY, run="run", content="a", **changed):
    fields = {
        "run": run,
        "version": version,
        "parent": version - 1 if version else None,
        "kind": "anchor",
        "manifest_uri": f"{STORE}/weights/{run}/{version:08d}/manifest.json",
        "sha256": content * 64,
        "size": 7,
        "step": version,
    }
    return key.sign(Weights(**(fields | changed)))


def knowing(*versions):
    """Returns known versions that were all fetched."""
    known = KnownVersions()
    for version in versions:
        known = mark_fetched(add_version(known, honest(version)), honest(version))
    return known


def problem(pointer, versions=None, trust=(KEY.public,), store_url=STORE):
    return problem_with(pointer, versions or knowing(0, 1, 2), store_url=store_url, trust=trust)


def test_the_next_version_and_a_repeated_record_are_trusted():
    assert problem(honest(3)) is None
    assert problem(honest(1)) is None
    assert problem(honest(0), KnownVersions()) is None
    assert problem(honest(700), KnownVersions()) is None  # the records before have expired
    assert problem(honest(3), store_url=STORE + "/") is None


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/weights/run/00000003/manifest.json",
        "file:///tmp/forged/weights/run/00000003/manifest.json",
        "s3://bucket2/prefix/weights/run/00000003/manifest.json",
        "s3://bucket/weights/run/00000003/manifest.json",
        "s3://bucket/prefix2/weights/run/00000003/manifest.json",
        "s3://evil@bucket/prefix/weights/run/00000003/manifest.json",
        "s3://bucket:80/prefix/weights/run/00000003/manifest.json",
        "s3://bucket/prefix/../prefix/weights/run/00000003/manifest.json",
        "s3://bucket/prefix/weights/run/%2e%2e/run/00000003/manifest.json",
        "s3://bucket/prefix/weights/other/00000003/manifest.json",
        "s3://bucket/prefix/weights/run/00000002/manifest.json",
        "s3://bucket/prefix/weights/run/00000003/manifest.json?versionId=1",
        "s3://bucket/prefix/weights/run/00000003/manifest.json#x",
        " s3://bucket/prefix/weights/run/00000003/manifest.json",
        "s3://bucket/prefix/weights/run/00000003/manifest.json\n",
        "http://bucket/prefix/weights/run/00000003/manifest.json",
        "http://[bucket",
        "",
    ],
)
def test_weights_are_loaded_only_from_their_path_in_the_configured_store_even_if_signed(uri):
    assert "manifest_uri" in problem(honest(3, manifest_uri=uri))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sha256": "../../etc/passwd"}, "sha256"),
        ({"sha256": "A" * 64}, "sha256"),
        ({"sha256": "a" * 64 + "\n"}, "sha256"),
        ({"parent": None}, "parent"),
        ({"parent": 1}, "parent"),
        ({"parent": 3}, "parent"),
        ({"size": 2**62}, "size"),
        ({"step": 2**62}, "at most"),
    ],
)
def test_a_field_out_of_bounds_is_refused_even_if_it_is_signed(changed, said):
    assert said in problem(honest(3, **changed))


def test_a_version_beyond_all_bounds_is_refused_and_shown_short():
    assert str(MAX_VERSION) in problem(honest(2**62))
    assert len(problem(honest(10**3000))) < 300


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        (honest(3).model_copy(update={"signature": "", "signed_by": ""}), "not signed"),
        (honest(3, key=OTHER), "`trust` does not name"),
        (honest(3, key=OTHER).model_copy(update={"signed_by": KEY.public}), "not by"),
        (honest(3).model_copy(update={"signature": honest(2).signature}), "was changed"),
        (honest(3, content="b").model_copy(update={"sha256": "a" * 64}), "was changed"),
        (
            honest(3, run="other").model_copy(update={"run": "run", "manifest_uri": honest(3).manifest_uri}),
            "was changed",
        ),
    ],
    ids=["unsigned", "another key", "a false name", "an old signature", "another manifest", "another run"],
)
def test_records_without_a_trusted_signature_are_refused(pointer, said):
    assert said in problem(pointer)


def test_while_a_key_is_replaced_both_are_trusted():
    both = (OTHER.public, KEY.public)
    assert problem(honest(3), trust=both) is None
    assert problem(honest(3, key=OTHER), trust=both) is None
    assert problem(honest(3), trust=(OTHER.public,)) is not None


def test_another_manifest_of_a_known_version_and_late_versions_are_refused():
    assert "is known with another manifest" in problem(honest(2, content="b"))
    assert "comes after version 9" in problem(honest(3), knowing(8, 9))


def test_a_version_that_was_not_fetched_outranks_nothing():
    # Signed by an earlier instance of the run, with the same key, and replayed.
    replayed = add_version(knowing(0, 1, 2), honest(500, content="b"))
    assert problem(honest(3, content="c"), replayed) is None
    assert problem(honest(500, content="c"), replayed) is None
    assert "comes after version 2" in problem(honest(1, content="c"), add_version(knowing(2), honest(500, content="b")))


@given(st.data())
def test_a_record_that_was_changed_anywhere_is_refused(data):
    name = data.draw(st.sampled_from(["run", "version", "parent", "kind", "sha256", "size", "step", "signature"]))
    value = data.draw(st.integers(0, 2**70) if name in ("version", "parent", "size", "step") else st.text(max_size=130))
    pointer = honest(3)
    changed = pointer.model_copy(update={name: value})
    if changed != pointer:
        assert problem(changed) is not None


@pytest.fixture
def follower(tmp_path):
    """Returns a follower, and the records that it sends."""
    announced = []

    async def announce(topic, record, id):
        announced.append((id, record))

    config = FollowerConfig("", "run", "http://engine", "engine-1", tmp_path / "cache", STORE, (KEY.public,))
    made = Follower(config, FakeEngine().client(), announce, KnownVersions())
    return made, announced


async def test_a_forged_record_raises_an_alert_and_blocks_no_valid_version(follower):
    made, announced = follower
    await made.consider(honest(0), "weights-0@0")
    before = made.versions
    await made.consider(honest(2**53, key=OTHER), "weights-0@1")
    await made.consider(honest(1, key=OTHER), "weights-0@2")
    assert made.versions == before
    await made.consider(honest(1), "weights-0@3")
    assert [each.version for each in made.versions.known] == [0, 1]
    assert [(record.kind, record.severity) for _, record in announced] == [(WEIGHTS_UNTRUSTED, Severity.CRITICAL)] * 2
    assert "weights-0@1" in announced[0][1].message


async def test_the_same_record_raises_the_same_alert_after_a_restart(follower):
    made, announced = follower
    for _ in range(2):
        await made.consider(honest(1, key=OTHER), "weights-0@7")
    assert announced[0][0] == announced[1][0]


async def test_a_thousand_forged_records_raise_ten_alerts(follower):
    made, announced = follower
    for offset in range(1000):
        await made.consider(honest(1, key=OTHER), f"weights-0@{offset}")
    assert len(announced) == 10
    assert "only logged" in announced[-1][1].message
    assert made.versions == KnownVersions()


async def test_a_signed_version_after_a_gap_is_followed_and_the_gap_is_reported(follower):
    # The records in between may be unreadable or expired, so waiting for them might never end.
    made, announced = follower
    for version in (3, 7, 8):
        await made.consider(honest(version), f"weights-0@{version}")
    assert [each.version for each in made.versions.known] == [3, 7, 8]
    assert [(type(record), record.kind) for _, record in announced] == [(Alert, WEIGHTS_GAP)]
