#include "column.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "payloads/json.hpp"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the low bytes of a number come first");

constexpr size_t kFirstCapacity = 1024;

// Writes `json`, which has no space outside its strings, with a space after each comma and colon. Returns the length.
size_t write_spaced(std::string_view json, char* out) {
    const char* begin = out;
    bool in_string = false;
    for (size_t at = 0; at < json.size(); ++at) {
        const char c = json[at];
        *out++ = c;
        if (in_string && c == '\\') *out++ = json[++at];
        else if (c == '"') in_string = !in_string;
        else if (!in_string && (c == ',' || c == ':')) *out++ = ' ';
    }
    return static_cast<size_t>(out - begin);
}

// Appends the bit of row number `row`, for which there is room.
void append_bit(Buffer& bits, bool is_set, size_t row) {
    const char none = 0;
    if (row % 8 == 0) bits.append(&none, 1);
    if (is_set) bits.back() = static_cast<char>(bits.back() | 1 << row % 8);
}

size_t largest(const Cell& cell) { return cell.text.size() * (cell.compact ? 2 : 1); }

}  // namespace

bool put_json(std::string_view json, Cell& cell) {
    cell.text = json;
    cell.compact = json.front() == '{' || json.front() == '[';
    JsonScanner scanner(json);
    return scanner.value(0) && scanner.at_end();
}

bool Buffer::grow(size_t more) {
    const size_t capacity = std::max({2 * capacity_, size_ + more, kFirstCapacity});
    Ref larger(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity)));
    if (!larger) return false;
    if (size_) std::memcpy(PyBytes_AS_STRING(larger.get()), PyBytes_AS_STRING(bytes_.get()), size_);
    bytes_ = std::move(larger);
    capacity_ = capacity;
    return true;
}

void Buffer::append(const void* data, size_t length) {
    if (length == 0) return;
    std::memcpy(end(), data, length);
    size_ += length;
}

PyObject* Buffer::release() {
    const size_t size = std::exchange(size_, 0);
    capacity_ = 0;
    PyObject* bytes = bytes_.release();
    if (bytes == nullptr) return to_bytes({});
    _PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(size));
    return bytes;
}

bool Column::fits(const Cell& cell) const {
    if (is_text()) return fits(largest(cell));
    if (form_ == Form::kNumber || form_ == Form::kDouble || cell.bits <= UINT32_MAX) return true;
    return form_ == Form::kWide && cell.bits <= INT64_MAX;
}

bool Column::reserve(const Cell& cell) {
    if (is_text()) return data_.reserve(largest(cell)) && ends_.reserve(2 * sizeof(int32_t));
    return data_.reserve(width()) && (!is_nullable() || validity_.reserve(1));
}

void Column::append(const Cell& cell, size_t row) {
    if (is_text()) {
        if (row == 0) {
            const int32_t begin = 0;
            ends_.append(&begin, sizeof begin);
        }
        if (cell.compact) data_.extend(write_spaced(cell.text, data_.end()));
        else data_.append(cell.text.data(), cell.text.size());
        const auto end = static_cast<int32_t>(data_.size());
        ends_.append(&end, sizeof end);
        return;
    }
    if (form_ == Form::kFlag) {
        append_bit(data_, cell.bits != 0, row);
        return;
    }
    data_.append(&cell.bits, width());
    if (is_nullable()) append_bit(validity_, !cell.is_null, row);
}

PyObject* Column::release() {
    const Ref validity = is_nullable() ? Ref(validity_.release()) : Ref::borrowed(Py_None);
    const Ref data(data_.release());
    if (!validity || !data) return nullptr;
    if (!is_text()) return Py_BuildValue("[OO]", validity.get(), data.get());
    const Ref ends(ends_.release());
    return ends ? Py_BuildValue("[OOO]", Py_None, ends.get(), data.get()) : nullptr;
}

}  // namespace headrace
