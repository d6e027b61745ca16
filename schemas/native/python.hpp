// CPython helpers for all files: owned references, and conversion of C++ exceptions.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <new>
#include <string_view>
#include <utility>

namespace headrace {

// An owned reference; empty if a call failed and set Python's error.
class Ref {
public:
    Ref() = default;
    explicit Ref(PyObject* owned) : object_(owned) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() { Py_XDECREF(object_); }

    static Ref borrowed(PyObject* object) { return Ref(Py_XNewRef(object)); }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

private:
    PyObject* object_ = nullptr;
};

inline std::string_view bytes_view(PyObject* bytes) {
    return {PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))};
}

inline PyObject* to_bytes(std::string_view text) {
    return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

// A type of the extension module with the members that every one has; the caller adds the others. `Object` is the
// struct of an instance.
template <typename Object>
PyTypeObject type_of(const char* name, const char* doc, newfunc make, destructor destroy) {
    PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
    type.tp_name = name;
    type.tp_doc = doc;
    type.tp_basicsize = sizeof(Object);
    type.tp_flags = Py_TPFLAGS_DEFAULT;
    type.tp_new = make;
    type.tp_dealloc = destroy;
    return type;
}

// Runs `work`; a C++ exception (only out of memory is possible) sets Python's error and returns `failed`.
template <typename Work, typename Result>
Result guarded(Work&& work, Result failed) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
        return failed;
    }
}

}  // namespace headrace
