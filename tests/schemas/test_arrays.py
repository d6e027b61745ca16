"""Token arrays survive the wire exactly, and invalid ones are refused with a reason."""

import base64
import random
import struct
from array import array

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from headrace.schemas.arrays import (
    COMPRESS_FROM,
    FREE_INFLATION,
    MAX_BYTES,
    LogProbs,
    LossMask,
    TokenIds,
    decode_array,
    encode_array,
)


class Carrier(BaseModel):
    ids: TokenIds | None = None
    logprobs: LogProbs | None = None
    mask: LossMask | None = None


int32 = st.integers(-(2**31), 2**31 - 1)
logprob = st.floats(max_value=0.0, width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(int32, max_size=600), st.lists(logprob, max_size=600), st.lists(st.sampled_from([0, 1]), max_size=99))
def test_arrays_are_read_back_bit_for_bit(ids: list[int], logprobs: list[float], mask: list[int]) -> None:
    carrier = Carrier(ids=array("i", ids), logprobs=array("f", logprobs), mask=array("b", mask))
    again = Carrier.model_validate_json(carrier.model_dump_json())
    assert again == carrier
    assert again.logprobs is not None
    assert again.logprobs.tobytes() == array("f", logprobs).tobytes()


def test_arrays_are_little_endian_base64() -> None:
    assert base64.b64decode(encode_array(array("i", [5, 6]))) == struct.pack("<2i", 5, 6)


def test_long_arrays_are_compressed_and_short_ones_are_not() -> None:
    assert not encode_array(array("i", [7] * (COMPRESS_FROM // 4 - 1))).startswith("zstd:")
    assert encode_array(array("i", [7] * (COMPRESS_FROM // 4))).startswith("zstd:")


@pytest.mark.parametrize("typecode", ["i", "f", "b"])
@pytest.mark.parametrize("items", [1_000, 16_000, 20_000, 300_000, 1_000_000])
def test_arrays_of_any_compressibility_are_read_back(typecode: str, items: int) -> None:
    values = array(typecode, [1]) * items
    assert decode_array(encode_array(values), typecode) == values


def test_a_short_text_does_not_expand_to_a_large_array() -> None:
    packed = base64.b64encode(zstandard.ZstdCompressor(level=19).compress(bytes(MAX_BYTES))).decode()
    assert len(packed) < 800
    for typecode in "if":
        with pytest.raises(ValueError, match="characters must state a size of at most"):
            decode_array(f"zstd:{packed}", typecode)
    small = base64.b64encode(zstandard.ZstdCompressor(level=19).compress(bytes(FREE_INFLATION["i"]))).decode()
    assert len(decode_array(f"zstd:{small}", "i")) == FREE_INFLATION["i"] // 4


def test_repetitive_tokens_stay_compressed() -> None:
    """Twenty copies of a document of 4,000 tokens."""
    document = array("i", random.Random(3).choices(range(150_000), k=4_000))
    assert encode_array(document * 20).startswith("zstd:")


def test_a_plain_list_is_accepted_in_python() -> None:
    assert Carrier.model_validate({"ids": [1, 2]}).ids == array("i", [1, 2])


@pytest.mark.parametrize("text", ["not base64!", "AAA=", "zstd:AAAA", base64.b64encode(b"12345").decode()])
def test_text_that_is_not_an_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="token array"):
        decode_array(text, "i")


def test_a_decompression_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_BYTES + 4))
    with pytest.raises(ValueError, match="at most"):
        decode_array("zstd:" + base64.b64encode(bomb).decode(), "i")


def test_a_frame_without_a_stated_size_is_refused() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(ValueError, match="size"):
        decode_array("zstd:" + base64.b64encode(compressor.compress(b"1234")).decode(), "i")


def test_a_nan_log_probability_is_refused() -> None:
    with pytest.raises(ValidationError, match="not finite"):
        Carrier(logprobs=array("f", [float("nan")]))


def test_a_mask_holds_zeros_and_ones_only() -> None:
    with pytest.raises(ValidationError, match="0 and 1"):
        Carrier(mask=array("b", [2]))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-6, -1e30])
def test_a_log_probability_above_zero_by_rounding_is_accepted(value: float) -> None:
    assert Carrier(logprobs=array("f", [-1.0, value])).logprobs == array("f", [-1.0, value])


@pytest.mark.parametrize("value", [0.002, 5.0])
def test_a_probability_above_one_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="at most 0"):
        Carrier(logprobs=array("f", [-1.0, value]))
