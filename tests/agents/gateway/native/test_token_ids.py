"""Token ids from JSON and as JSON in C++, beside msgspec."""

import hashlib
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.agents.gateway.native.available import SPEEDUPS, decode_ids, encode_ids
from headrace.agents.gateway.rendered_ids import TokenId
from tests.agents.gateway.native.both_ways import needs_speedups

pytestmark = needs_speedups


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_are_written_as_msgspec_writes_them(ids: list[int]) -> None:
    assert encode_ids is not None
    assert encode_ids(array("i", ids)) == msgspec.json.encode(ids)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_token_ids_are_read_as_they_were_written(ids: list[int]) -> None:
    assert decode_ids(msgspec.json.encode(ids)) == array("i", ids).tobytes()


@given(st.text(alphabet="0123456789,[]-. e", max_size=14).map(str.encode) | st.binary(max_size=8))
@example(b"[2147483648]")
@example(b"[01]")
@example(b"[99999999999999999999]")
@example(b"[1,]")
@example(b"[1]]")
@example(b"[]")
def test_what_is_read_is_what_msgspec_reads(json: bytes) -> None:
    if (found := decode_ids(json)) is not None:
        assert array("i", found).tolist() == msgspec.json.decode(json, type=list[TokenId])


@pytest.mark.parametrize("other", [array("f", [1.0]), array("q", [1]), b"1234", [1]])
def test_other_arrays_are_refused(other: object) -> None:
    assert encode_ids is not None
    with pytest.raises(TypeError):
        encode_ids(other)  # type: ignore[arg-type]


def test_it_was_built_from_the_current_sources() -> None:
    root = Path(__file__).parents[4]
    folders = (root / "agents" / "gateway" / "native", root / "schemas" / "native")
    sources = [path for folder in folders for path in sorted(folder.rglob("*.?pp"))]
    assert SPEEDUPS is not None
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert digest == SPEEDUPS.SOURCES, "the sources have changed since: `make native`"
