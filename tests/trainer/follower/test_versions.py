from headrace.schemas.records.weights import Weights
from headrace.trainer.follower.versions import (
    MAX_KNOWN,
    KnownVersions,
    add_version,
    mark_absent,
    refuse,
    target_version,
)


def pointer(version, sha256=None):
    return Weights(
        run="run",
        version=version,
        parent=None,
        kind="anchor",
        manifest_uri=f"file:///objects/{version}",
        sha256=sha256 or f"sha-{version}",
        size=1,
        step=version,
    )


def knowing(*versions, good=None):
    known = KnownVersions(good=good)
    for version in versions:
        known = add_version(known, pointer(version))
    return known


def served(versions):
    found = target_version(versions)
    return None if found is None else found.version


def test_the_newest_version_is_served_whatever_the_order_of_the_records():
    assert served(knowing(0, 3, 1)) == 3
    assert served(knowing()) is None


def test_where_the_newest_was_refused_the_last_good_one_is_served_and_no_skipped_one():
    assert served(refuse(knowing(0, 1, 2, 3, good=1), pointer(3))) == 1


def test_without_a_good_one_the_newest_of_the_others_is_served():
    assert served(refuse(knowing(0, 1, 2), pointer(2))) == 1


def test_a_refused_good_version_is_not_served_either():
    refused = refuse(refuse(knowing(0, 1, 2, good=1), pointer(2)), pointer(1))
    assert served(refused) == 0
    assert served(refuse(refused, pointer(0))) is None


def test_a_newer_version_ends_a_fallback():
    assert served(add_version(refuse(knowing(0, 1, good=0), pointer(1)), pointer(2))) == 2


def test_of_two_manifests_of_a_version_the_available_one_is_served():
    again = add_version(knowing(0, 1), pointer(1, sha256="other"))
    assert target_version(again, ["other"]).sha256 == "sha-1"
    assert target_version(again, ["sha-1"]).sha256 == "other"
    assert target_version(refuse(again, pointer(1, sha256="other"))).sha256 == "sha-1"
    assert add_version(again, pointer(1)) == again


def test_missing_versions_outrank_none_and_absent_ones_are_forgotten():
    versions = knowing(0, 1, 2, 500, good=0)
    assert target_version(versions, ["sha-500"]).version == 2
    versions = mark_absent(versions, pointer(500))
    assert served(versions) == 2
    assert add_version(versions, pointer(500)) == versions
    assert served(add_version(versions, pointer(3))) == 3


def test_an_unavailable_version_is_skipped_until_it_is_available():
    versions = knowing(0, 1, good=0)
    assert target_version(versions, ["sha-1"]).version == 0
    assert target_version(versions).version == 1


def test_only_the_newest_pointers_and_the_good_one_are_remembered():
    versions = knowing(*range(MAX_KNOWN + 10), good=None)
    assert [p.version for p in versions.known] == list(range(10, MAX_KNOWN + 10))
    versions = knowing(*range(MAX_KNOWN + 10), good=2)
    assert [p.version for p in versions.known] == [2, *range(10, MAX_KNOWN + 10)]
