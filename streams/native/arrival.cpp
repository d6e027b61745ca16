#include "arrival.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "envelope_time.hpp"

namespace headrace {
namespace {

// As in schemas/envelope.py; tests/streams/native hold the two together.
constexpr std::string_view kId = "ce_id", kType = "ce_type", kSource = "ce_source", kTime = "ce_time";
constexpr std::string_view kSubject = "ce_subject", kSequence = "ce_sequence", kTraceparent = "traceparent";

constexpr size_t kMaxDigits = 18;  // of a sequence number: 64 bits hold it
constexpr size_t kMaxIdBytes = 512;

bool is_ascii(std::string_view text) {
    unsigned char seen = 0;
    for (const char c : text) seen |= static_cast<unsigned char>(c);
    return seen < 0x80;
}

int64_t natural(std::string_view text) {
    if (text.empty() || text.size() > kMaxDigits) return -1;
    int64_t value = 0;
    for (const char digit : text) {
        if (digit < '0' || digit > '9') return -1;
        value = value * 10 + (digit - '0');
    }
    return value;
}

// What the headers say. Of several with one name the last counts.
struct Envelope {
    std::optional<std::string_view> kind, subject, sequence, time, traceparent;
    bool has_id = false, has_source = false, any_null = false, ascii = true;
    int64_t size = 0;

    explicit Envelope(const std::vector<RawHeader>& headers) {
        constexpr size_t kFew = 32;
        std::unordered_set<std::string_view> names;
        const auto seen_later = [&](size_t index) {
            if (headers.size() > kFew) return !names.insert(headers[index].name).second;
            for (size_t later = index + 1; later < headers.size(); ++later) {
                if (headers[later].name == headers[index].name) return true;
            }
            return false;
        };
        for (size_t index = headers.size(); index-- > 0;) {
            if (!seen_later(index)) take(headers[index]);
        }
    }

private:
    void take(const RawHeader& header) {
        if (header.value) {
            size += static_cast<int64_t>(header.value->size());
            ascii = ascii && is_ascii(*header.value);
        } else {
            any_null = true;
        }
        const std::string_view name = header.name;
        if (name == kType) kind = header.value;
        else if (name == kSubject) subject = header.value;
        else if (name == kSequence) sequence = header.value;
        else if (name == kTime) time = header.value;
        else if (name == kTraceparent) traceparent = header.value;
        else if (name == kId) has_id = true;
        else if (name == kSource) has_source = true;
    }
};

// Packs what an arrival keeps: key, value, then each header as name length, value length (negative: null), name, value.
class Packing {
public:
    explicit Packing(char* begin) : begin_(begin), end_(begin) {}

    Piece put(const std::optional<std::string_view>& text) {
        if (!text) return {};
        const Piece piece{static_cast<uint32_t>(end_ - begin_), static_cast<int32_t>(text->size())};
        copy(text->data(), text->size());
        return piece;
    }

    Piece put(const RawHeader& header) {
        const int32_t lengths[] = {static_cast<int32_t>(header.name.size()),
                                   header.value ? static_cast<int32_t>(header.value->size()) : -1};
        copy(lengths, sizeof lengths);
        copy(header.name.data(), header.name.size());
        return put(header.value);
    }

    uint32_t length() const { return static_cast<uint32_t>(end_ - begin_); }

private:
    void copy(const void* from, size_t count) {
        if (count) std::memcpy(end_, from, count);
        end_ += count;
    }

    char* begin_;
    char* end_;
};

size_t packed_size(const RawRecord& record) {
    size_t total = (record.key ? record.key->size() : 0) + (record.value ? record.value->size() : 0);
    for (const RawHeader& header : record.headers) {
        total += 2 * sizeof(int32_t) + header.name.size() + (header.value ? header.value->size() : 0);
    }
    return total;
}

}  // namespace

PyObject* arrival_of(const RawRecord& record) {
    const Envelope envelope(record.headers);
    const size_t packed = packed_size(record);
    if (packed > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a record of 2 GiB and more");
        return nullptr;
    }
    Ref subject;
    if (envelope.subject && !(subject = Ref(to_bytes(*envelope.subject)))) return nullptr;
    auto* arrival = PyObject_NewVar(Arrival, &ArrivalType, static_cast<Py_ssize_t>(packed));
    if (arrival == nullptr) return nullptr;
    arrival->topic = Py_NewRef(record.topic);
    arrival->subject = subject.release();
    arrival->partition = record.partition;
    arrival->offset = record.offset;
    arrival->timestamp = record.timestamp;
    arrival->sequence = envelope.sequence ? natural(*envelope.sequence) : -1;
    arrival->size = envelope.size + (record.value ? static_cast<int64_t>(record.value->size()) : 0);
    arrival->time_ms = kNoTime;
    if (envelope.time && envelope.has_id && envelope.has_source && envelope.ascii && !envelope.any_null) {
        arrival->time_ms = plain_time(*envelope.time).value_or(kNoTime);
    }
    Packing packing(arrival->bytes);
    arrival->key = packing.put(record.key);
    arrival->value = packing.put(record.value);
    arrival->headers.at = packing.length();
    arrival->header_count = static_cast<uint32_t>(record.headers.size());
    arrival->kind = arrival->traceparent = Piece();
    for (const RawHeader& header : record.headers) {
        const Piece piece = packing.put(header);
        if (header.name == kType) arrival->kind = piece;
        else if (header.name == kTraceparent) arrival->traceparent = piece;
    }
    arrival->fact = fact_of(arrival->view(arrival->kind));
    arrival->headers.length = static_cast<int32_t>(packing.length() - arrival->headers.at);
    return reinterpret_cast<PyObject*>(arrival);
}

namespace {

Arrival* self_of(PyObject* object) { return reinterpret_cast<Arrival*>(object); }

PyObject* piece_or_none(PyObject* object, Piece piece) {
    if (!piece) Py_RETURN_NONE;
    return to_bytes(self_of(object)->view(piece));
}

PyObject* get_topic(PyObject* self, void*) { return Py_NewRef(self_of(self)->topic); }
PyObject* get_partition(PyObject* self, void*) { return PyLong_FromLong(self_of(self)->partition); }
PyObject* get_offset(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->offset); }
PyObject* get_timestamp(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->timestamp); }
PyObject* get_size(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self)->size); }
PyObject* get_key(PyObject* self, void*) { return piece_or_none(self, self_of(self)->key); }
PyObject* get_value(PyObject* self, void*) { return piece_or_none(self, self_of(self)->value); }
PyObject* get_kind(PyObject* self, void*) { return piece_or_none(self, self_of(self)->kind); }

PyObject* get_subject(PyObject* self, void*) {
    PyObject* subject = self_of(self)->subject;
    return Py_NewRef(subject ? subject : Py_None);
}

PyObject* get_sequence(PyObject* self, void*) {
    if (self_of(self)->sequence < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(self_of(self)->sequence);
}

PyObject* get_time_ms(PyObject* self, void*) {
    if (self_of(self)->time_ms == kNoTime) Py_RETURN_NONE;
    return PyLong_FromLongLong(self_of(self)->time_ms);
}

PyObject* get_names_trajectory(PyObject* self, void*) {
    PyObject* subject = self_of(self)->subject;
    if (subject == nullptr) Py_RETURN_FALSE;
    const std::string_view id = bytes_view(subject);
    if (id.empty() || id.size() > kMaxIdBytes) Py_RETURN_FALSE;
    const Ref text(PyUnicode_DecodeUTF8(id.data(), static_cast<Py_ssize_t>(id.size()), nullptr));
    if (text) Py_RETURN_TRUE;
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return nullptr;
    PyErr_Clear();
    Py_RETURN_FALSE;
}

PyObject* get_headers(PyObject* object, void*) {
    const Arrival* self = self_of(object);
    Ref pairs(PyList_New(self->header_count));
    if (!pairs) return nullptr;
    const char* at = self->bytes + self->headers.at;
    for (uint32_t index = 0; index < self->header_count; ++index) {
        int32_t lengths[2];
        std::memcpy(lengths, at, sizeof lengths);
        at += sizeof lengths;
        const auto [name_length, value_length] = lengths;
        Ref name(PyUnicode_DecodeUTF8(at, name_length, nullptr));
        at += name_length;
        Ref value = value_length < 0 ? Ref::borrowed(Py_None) : Ref(PyBytes_FromStringAndSize(at, value_length));
        at += std::max(value_length, 0);
        PyObject* pair = name && value ? PyTuple_Pack(2, name.get(), value.get()) : nullptr;
        if (pair == nullptr) return nullptr;
        PyList_SET_ITEM(pairs.get(), index, pair);
    }
    return pairs.release();
}

// Null with Python's error set where `object` is neither bytes nor None.
bool optional_view(PyObject* object, const char* what, std::optional<std::string_view>& view) {
    if (object == Py_None) return true;
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes or None, not %.100s", what, Py_TYPE(object)->tp_name);
        return false;
    }
    view = bytes_view(object);
    return true;
}

bool raw_header(PyObject* pair, RawHeader& header) {
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(pair, 0))) {
        PyErr_SetString(PyExc_TypeError, "a header must be a pair of a name and bytes or None");
        return false;
    }
    Py_ssize_t length;
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair, 0), &length);
    if (name == nullptr) return false;
    header.name = {name, static_cast<size_t>(length)};
    return optional_view(PyTuple_GET_ITEM(pair, 1), "a header's value", header.value);
}

PyObject* make(PyTypeObject*, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"topic", "partition", "offset", "timestamp", "key", "value", "headers", nullptr};
    PyObject *topic, *key, *value, *headers;
    int partition;
    long long offset, timestamp;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UiLLOOO", const_cast<char**>(names), &topic, &partition,
                                     &offset, &timestamp, &key, &value, &headers)) {
        return nullptr;
    }
    return guarded([&]() -> PyObject* {
        RawRecord record{topic, partition, offset, timestamp, {}, {}, {}};
        if (!optional_view(key, "key", record.key) || !optional_view(value, "value", record.value)) return nullptr;
        const Ref pairs(PySequence_Fast(headers, "headers must be a sequence"));
        if (!pairs) return nullptr;
        for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(pairs.get()); ++index) {
            if (!raw_header(PySequence_Fast_GET_ITEM(pairs.get(), index), record.headers.emplace_back())) {
                return nullptr;
            }
        }
        return arrival_of(record);
    }, static_cast<PyObject*>(nullptr));
}

void destroy(PyObject* object) {
    Py_DECREF(self_of(object)->topic);
    Py_XDECREF(self_of(object)->subject);
    PyObject_Free(object);
}

PyGetSetDef kAttributes[] = {
    {"topic", get_topic, nullptr, nullptr, nullptr},
    {"partition", get_partition, nullptr, nullptr, nullptr},
    {"offset", get_offset, nullptr, nullptr, nullptr},
    {"timestamp", get_timestamp, nullptr, nullptr, nullptr},
    {"key", get_key, nullptr, nullptr, nullptr},
    {"value", get_value, nullptr, nullptr, nullptr},
    {"headers", get_headers, nullptr, nullptr, nullptr},
    {"kind", get_kind, nullptr, nullptr, nullptr},
    {"subject", get_subject, nullptr, nullptr, nullptr},
    {"sequence", get_sequence, nullptr, nullptr, nullptr},
    {"size", get_size, nullptr, nullptr, nullptr},
    {"time_ms", get_time_ms, nullptr, nullptr, nullptr},
    {"names_trajectory", get_names_trajectory, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject arrival_type() {
    PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = "headrace.streams.native.speedups.Arrival";
    type.tp_doc = "A record of `events`, and what its headers say.";
    type.tp_basicsize = offsetof(Arrival, bytes);
    type.tp_itemsize = 1;
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_dealloc = destroy;
    type.tp_getset = kAttributes;
    type.tp_new = make;
    return type;
}

}  // namespace

PyTypeObject ArrivalType = arrival_type();

}  // namespace headrace
