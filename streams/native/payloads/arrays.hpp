// The wire format of token arrays, as in schemas/arrays.py, which handles compressed arrays.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "python.hpp"

namespace headrace {

static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are sent in the byte order of memory");

// Python objects used for arrays.
struct ArrayCodec {
    Ref array_type;  // array.array
    Ref encode;      // encode_array(values) -> str
    Ref decode;      // decode_array(text, typecode) -> array
    long long compress_from = 0;
    long long max_bytes = 0;
    double max_logprob = 0;
};

enum class Outcome { kDone, kDoubt, kError };  // kError: with Python's error set

// Decodes `text` into bytes: whole items of `item_size`.
Outcome read_array(const ArrayCodec& codec, std::string_view text, char typecode, size_t item_size, std::string& bytes);

// Whether the bytes of 32-bit floats are log-probabilities, as `_logprobs` of schemas/arrays.py: a larger one than `most`
// is left for Python to refuse.
bool are_logprobs(std::string_view floats, double most);

// Appends the wire form of `bytes`, with quotes; false with Python's error set.
bool append_array(const ArrayCodec& codec, std::string_view bytes, char typecode, std::string& json);

}  // namespace headrace
