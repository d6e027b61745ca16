#include "derived_record.hpp"

#include <algorithm>

#include "envelope_time.hpp"
#include "hashing.hpp"
#include "trace.hpp"

namespace headrace {
namespace {

// As in schemas/envelope.py.
constexpr std::string_view kVarying[] = {"", "ce_id", "ce_time", "ce_subject", "traceparent"};

constexpr char kSeparator = '\x1f';

// Sixteen bytes in hex → a UUID of version 5 (RFC 9562) with its dashes.
std::string uuid5(std::string hex) {
    constexpr std::string_view kVariants = "89ab";
    const int digit = hex[16] <= '9' ? hex[16] - '0' : hex[16] - 'a' + 10;
    hex[12] = '5';
    hex[16] = kVariants[static_cast<size_t>(digit & 3)];
    for (const size_t at : {20, 16, 12, 8}) hex.insert(at, 1, '-');
    return hex;
}

}  // namespace

bool RecordRules::make(PyObject* headers, PyObject* id_prefix, PyObject* sha1, PyObject* sha256) {
    const Ref sequence(PySequence_Fast(headers, "headers must be a sequence"));
    if (!sequence) return false;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence.get()); ++index) {
        PyObject* pair = PySequence_Fast_GET_ITEM(sequence.get(), index);
        const char* name = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2
                               ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(pair, 0)) : nullptr;
        if (name == nullptr) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a header must be a pair of a name and bytes");
            return false;
        }
        Varying varying = kSame;
        for (const Varying each : {kId, kTime, kSubject, kTrace}) {
            if (name == kVarying[each]) varying = each;
        }
        headers_.push_back({varying, Ref::borrowed(pair)});
    }
    id_prefix_ = bytes_view(id_prefix);
    sha1_ = Ref::borrowed(sha1);
    sha256_ = Ref::borrowed(sha256);
    return true;
}

// `derived_id` of schemas/ids.py.
bool RecordRules::append_id(std::string_view trajectory_id, int32_t partition, int64_t offset, std::string& id) const {
    std::string name = id_prefix_;
    name.append(trajectory_id).append(1, kSeparator).append(std::to_string(partition));
    name.append(1, kSeparator).append(std::to_string(offset));
    std::string hex;
    if (!Hash(sha1_.get(), name).append_hex(hex, 16)) return false;
    id += uuid5(std::move(hex));
    return true;
}

// `continued` of schemas/trace.py.
bool RecordRules::append_trace(std::string_view traceparent, std::string_view id, std::string& trace) const {
    std::string place(traceparent.substr(kSpanAt, kSpanDigits));
    place.append("/").append(id);
    trace += traceparent.substr(0, kSpanAt);
    if (!Hash(sha256_.get(), place).append_hex(trace, kSpanDigits / 2)) return false;
    trace += traceparent.substr(kSpanAt + kSpanDigits);
    return true;
}

Outcome RecordRules::write(std::string_view trajectory_id, int32_t partition, int64_t offset, int64_t time_ms,
                           std::string_view traceparent, Ref& key, Ref& headers) const {
    std::string id, trace, time;
    if (!append_plain_time(std::max<int64_t>(0, time_ms), time)) return Outcome::kDoubt;
    if (!append_id(trajectory_id, partition, offset, id)) return Outcome::kError;
    if (!traceparent.empty() && !append_trace(traceparent, id, trace)) return Outcome::kError;
    key = Ref(to_bytes(trajectory_id));
    headers = Ref(PyList_New(0));
    if (!key || !headers) return Outcome::kError;
    const std::string_view contents[] = {{}, id, time, trajectory_id, trace};
    for (const auto& [varying, pair] : headers_) {
        if (varying == kTrace && traceparent.empty()) continue;
        Ref made = Ref::borrowed(pair.get());
        if (varying != kSame) {
            const Ref content = varying == kSubject ? Ref::borrowed(key.get()) : Ref(to_bytes(contents[varying]));
            made = Ref(content ? PyTuple_Pack(2, PyTuple_GET_ITEM(pair.get(), 0), content.get()) : nullptr);
        }
        if (!made || PyList_Append(headers.get(), made.get()) < 0) return Outcome::kError;
    }
    return Outcome::kDone;
}

}  // namespace headrace
