#include "arrays.hpp"

#include <cmath>
#include <cstring>

#include "base64.hpp"

namespace headrace {
namespace {

constexpr std::string_view kCompressed = "zstd:";

// Decoded by Python; if Python refuses it, the result is doubt, and the model reports the error.
Outcome unpack(const ArrayCodec& codec, std::string_view text, char typecode, std::string& bytes) {
    const Ref values(PyObject_CallFunction(codec.decode.get(), "s#C", text.data(),
                                           static_cast<Py_ssize_t>(text.size()), typecode));
    if (!values) {
        if (!PyErr_ExceptionMatches(PyExc_ValueError)) return Outcome::kError;
        PyErr_Clear();
        return Outcome::kDoubt;
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(values.get(), &buffer, PyBUF_SIMPLE) < 0) return Outcome::kError;
    bytes.assign(static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len));
    PyBuffer_Release(&buffer);
    return Outcome::kDone;
}

}  // namespace

Outcome read_array(const ArrayCodec& codec, std::string_view text, char typecode, size_t item_size,
                   std::string& bytes) {
    if (text.starts_with(kCompressed)) return unpack(codec, text, typecode, bytes);
    const bool whole = decode_base64(text, bytes) && bytes.size() % item_size == 0;
    return whole && bytes.size() <= static_cast<size_t>(codec.max_bytes) ? Outcome::kDone : Outcome::kDoubt;
}

bool are_logprobs(std::string_view floats, double most) {
    for (size_t at = 0; at < floats.size(); at += sizeof(float)) {
        float value;
        std::memcpy(&value, floats.data() + at, sizeof value);
        if (!std::isfinite(value) || value > most) return false;
    }
    return true;
}

bool append_array(const ArrayCodec& codec, std::string_view bytes, char typecode, std::string& json) {
    json += '"';
    if (bytes.size() < static_cast<size_t>(codec.compress_from)) {
        append_base64(bytes, json);
    } else {
        const Ref values(PyObject_CallFunction(codec.array_type.get(), "Cy#", typecode, bytes.data(),
                                               static_cast<Py_ssize_t>(bytes.size())));
        const Ref text(values ? PyObject_CallOneArg(codec.encode.get(), values.get()) : nullptr);
        Py_ssize_t length;
        const char* packed = text ? PyUnicode_AsUTF8AndSize(text.get(), &length) : nullptr;
        if (packed == nullptr) return false;
        json.append(packed, static_cast<size_t>(length));
    }
    json += '"';
    return true;
}

}  // namespace headrace
