// Hashes with Python's hashlib, which uses OpenSSL's fast implementations; no library is needed to build this.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "python.hpp"

namespace headrace {

// A running hash, created by a constructor of hashlib with its first input. Failures leave Python's error set.
class Hash {
public:
    Hash() = default;
    explicit Hash(PyObject* constructor) : hash_(PyObject_CallNoArgs(constructor)) {}
    Hash(PyObject* constructor, std::string_view text) {
        const Ref bytes(to_bytes(text));
        if (bytes) hash_ = Ref(PyObject_CallOneArg(constructor, bytes.get()));
    }

    explicit operator bool() const { return static_cast<bool>(hash_); }

    bool update(std::string_view text) {
        static PyObject* const name = PyUnicode_InternFromString("update");
        const Ref bytes(to_bytes(text));
        return bytes && Ref(PyObject_CallMethodOneArg(hash_.get(), name, bytes.get()));
    }

    // Appends the current digest in lower-case hex; its first `most` bytes.
    bool append_hex(std::string& text, size_t most = SIZE_MAX) const {
        static PyObject* const name = PyUnicode_InternFromString("digest");
        const Ref digest(hash_ ? PyObject_CallMethodNoArgs(hash_.get(), name) : nullptr);
        if (!digest) return false;
        for (const char byte : bytes_view(digest.get()).substr(0, most)) {
            text += kHex[static_cast<unsigned char>(byte) >> 4];
            text += kHex[byte & 15];
        }
        return true;
    }

private:
    static constexpr char kHex[] = "0123456789abcdef";

    Ref hash_;
};

}  // namespace headrace
