#include "arrival.hpp"

#include <cstring>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "envelope_time.hpp"
#include "utf8.hpp"

namespace headrace {
namespace {

// As in schemas/envelope.py; tests/streams/native compare the two.
constexpr std::string_view kId = "ce_id", kType = "ce_type", kTime = "ce_time", kSubject = "ce_subject";
constexpr std::string_view kTraceparent = "traceparent";

constexpr size_t kMaxIdBytes = 512;  // MAX_ID_BYTES of assembly/arrival.py
constexpr size_t kMaxHeaderBytes = 2048;  // MAX_HEADER_BYTES of schemas/envelope.py: of an attribute
constexpr size_t kMaxDigits = 18;  // of a sequence number: 64 bits hold it

int64_t natural(std::string_view text) {
    if (text.empty() || text.size() > kMaxDigits) return -1;
    int64_t value = 0;
    for (const char digit : text) {
        if (digit < '0' || digit > '9') return -1;
        value = value * 10 + (digit - '0');
    }
    return value;
}

// Whether an attribute's length is checked; those of a sequence number and a time follow from their formats.
bool is_attribute(std::string_view name) {
    return name == kId || name == kType || name == kSourceHeader || name == kSubject || name == kTraceparent;
}

// The parsed headers. Of several headers with one name the last counts.
struct Envelope {
    std::optional<std::string_view> kind, subject, sequence, time, traceparent;
    bool has_id = false, has_source = false, any_null = false, ascii = true, short_enough = true;

    explicit Envelope(const std::vector<RawHeader>& headers) {
        for (const RawHeader& header : headers) take(header);
    }

private:
    void take(const RawHeader& header) {
        if (header.value) ascii = ascii && is_ascii(*header.value);
        else any_null = true;
        const std::string_view name = header.name;
        const size_t length = header.value ? header.value->size() : 0;
        if (length > kMaxHeaderBytes && is_attribute(name)) short_enough = false;
        if (name == kType) kind = header.value;
        else if (name == kSubject) subject = header.value;
        else if (name == kSequenceHeader) sequence = header.value;
        else if (name == kTime) time = header.value;
        else if (name == kTraceparent) traceparent = header.value;
        else if (name == kId) has_id = true;
        else if (name == kSourceHeader) has_source = true;
    }
};

// All parts of an arrival share one block of memory, so AddressSanitizer cannot detect reads past the end of a part. In
// its builds, key and value are followed by a poisoned gap.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGap = 16;
void forbid(const char* begin) { ASAN_POISON_MEMORY_REGION(begin, kGap); }
#else
constexpr size_t kGap = 0;
void forbid(const char*) {}
#endif
constexpr size_t kGaps = 2 * kGap;

// Packs an arrival: key, value, then each header as name length, value length (negative: null), name, value.
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

    Piece put_apart(const std::optional<std::string_view>& text) {
        const Piece piece = put(text);
        forbid(end_);
        end_ += kGap;
        return piece;
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
    auto* arrival = PyObject_NewVar(Arrival, &ArrivalType, static_cast<Py_ssize_t>(packed + kGaps));
    if (arrival == nullptr) return nullptr;
    arrival->topic = Py_NewRef(record.topic);
    arrival->subject = subject.release();
    arrival->partition = record.partition;
    arrival->offset = record.offset;
    arrival->timestamp = record.timestamp;
    arrival->sequence = envelope.sequence ? natural(*envelope.sequence) : -1;
    arrival->size = static_cast<int64_t>(packed);
    arrival->time_ms = kNoTime;
    if (envelope.time && envelope.has_id && envelope.has_source && envelope.ascii && !envelope.any_null &&
        envelope.short_enough) {
        arrival->time_ms = plain_time(*envelope.time).value_or(kNoTime);
    }
    Packing packing(arrival->bytes);
    arrival->key = packing.put_apart(record.key);
    arrival->value = packing.put_apart(record.value);
    arrival->headers.at = packing.length();
    arrival->header_count = static_cast<uint32_t>(record.headers.size());
    arrival->kind = arrival->id = arrival->traceparent = Piece();
    for (const RawHeader& header : record.headers) {
        const Piece piece = packing.put(header);
        if (header.name == kType) arrival->kind = piece;
        else if (header.name == kId) arrival->id = piece;
        else if (header.name == kTraceparent) arrival->traceparent = piece;
    }
    arrival->fact = fact_of(arrival->view(arrival->kind));
    arrival->headers.length = static_cast<int32_t>(packing.length() - arrival->headers.at);
    return reinterpret_cast<PyObject*>(arrival);
}

bool names_trajectory(const Arrival* arrival) {
    if (arrival->subject == nullptr) return false;
    const std::string_view id = bytes_view(arrival->subject);
    return !id.empty() && id.size() <= kMaxIdBytes && is_utf8(id);
}

}  // namespace headrace
