#include "nested_column.hpp"

#include <algorithm>

namespace headrace {
namespace {

Form form_of(std::string_view name) {
    return static_cast<Form>(std::find(std::begin(kFormNames), std::end(kFormNames), name) - std::begin(kFormNames));
}

PyObject* array_of(size_t length, Ref buffers, Ref children) {
    return Py_BuildValue("(nNN)", static_cast<Py_ssize_t>(length), buffers.release(), children.release());
}

}  // namespace

NestedColumn::NestedColumn(std::string_view form) : is_nested_(form.find(' ') != std::string_view::npos) {
    if (form.starts_with("map ")) leaves_.emplace_back(Form::kText);
    leaves_.emplace_back(form_of(form.substr(form.find(' ') + 1)));
}

bool NestedColumn::fits(const Cells& cells) const {
    if (!is_nested_) return leaves_.front().fits(cells.front());
    size_t bytes = 0;
    for (size_t index = 0; index < cells.size(); ++index) {
        if (!leaves_[index % leaves_.size()].fits(cells[index])) return false;
        bytes += cells[index].text.size();
    }
    return items_ + cells.size() <= INT32_MAX &&
           std::all_of(leaves_.begin(), leaves_.end(), [&](const Column& leaf) { return leaf.fits(bytes); });
}

bool NestedColumn::append(const Cells& cells) {
    for (size_t index = 0; index < cells.size(); ++index) {
        Column& leaf = leaves_[index % leaves_.size()];
        if (!leaf.reserve(cells[index])) return false;
        leaf.append(cells[index], items_ + index / leaves_.size());
    }
    items_ += cells.size() / leaves_.size();
    if (is_nested_) {
        const int32_t begin = 0, end = static_cast<int32_t>(items_);
        if (!ends_.reserve(2 * sizeof end)) return false;
        if (rows_ == 0) ends_.append(&begin, sizeof begin);
        ends_.append(&end, sizeof end);
    }
    ++rows_;
    return true;
}

PyObject* NestedColumn::release() {
    const size_t items = std::exchange(items_, 0), rows = std::exchange(rows_, 0);
    Ref children(PyList_New(0));
    for (Column& leaf : leaves_) {
        Ref buffers(leaf.release()), none(PyList_New(0));
        if (!children || !buffers || !none) return nullptr;
        const Ref child(array_of(items, std::move(buffers), std::move(none)));
        if (!child || PyList_Append(children.get(), child.get()) < 0) return nullptr;
    }
    if (!is_nested_) return Ref::borrowed(PyList_GET_ITEM(children.get(), 0)).release();
    const Ref ends(ends_.release());
    Ref buffers(ends ? Py_BuildValue("[OO]", Py_None, ends.get()) : nullptr);
    return buffers ? array_of(rows, std::move(buffers), std::move(children)) : nullptr;
}

}  // namespace headrace
