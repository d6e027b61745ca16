// The extension module `headrace.agents.gateway.native.speedups`.

#include "plain_lines.hpp"
#include "python.hpp"
#include "token_ids.hpp"

namespace {

using headrace::Ref;
using headrace::bytes_view;

template <typename Value>
PyObject* bytes_of(const std::vector<Value>& values) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                     static_cast<Py_ssize_t>(values.size() * sizeof(Value)));
}

PyObject* read_plain(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 4 || !PyBytes_Check(args[0]) || (args[2] != Py_None && !PyBytes_Check(args[2]))) {
        PyErr_SetString(PyExc_TypeError, "read_plain takes data, where to begin, the prompt's JSON, the longest line");
        return nullptr;
    }
    const Py_ssize_t at = PyLong_AsSsize_t(args[1]), longest = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred()) return nullptr;
    if (at < 0 || longest < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative position or length");
        return nullptr;
    }
    const std::string_view asked = args[2] == Py_None ? std::string_view() : bytes_view(args[2]);
    return headrace::guarded(
        [&]() -> PyObject* {
            headrace::gateway::Run run;
            if (!headrace::gateway::read_run(bytes_view(args[0]), static_cast<size_t>(at), asked,
                                             static_cast<size_t>(longest), run)) {
                Py_RETURN_NONE;
            }
            const Ref ids(bytes_of(run.token_ids)), logprobs(bytes_of(run.logprobs));
            const Ref text(PyUnicode_DecodeUTF8(run.text.data(), static_cast<Py_ssize_t>(run.text.size()), nullptr));
            if (!ids || !logprobs || !text) return nullptr;
            const std::string& ending = run.ending;
            return Py_BuildValue("nLOOOOy#", static_cast<Py_ssize_t>(run.end), static_cast<long long>(run.choice),
                                 ids.get(), logprobs.get(), text.get(), run.echoes ? Py_True : Py_False,
                                 ending.empty() ? nullptr : ending.data(), static_cast<Py_ssize_t>(ending.size()));
        },
        static_cast<PyObject*>(nullptr));
}

PyObject* decode_ids(PyObject*, PyObject* json) {
    if (!PyBytes_Check(json)) {
        PyErr_SetString(PyExc_TypeError, "decode_ids takes bytes");
        return nullptr;
    }
    return headrace::guarded(
        [&]() -> PyObject* {
            std::vector<int32_t> ids;
            if (!headrace::gateway::read_ids(bytes_view(json), ids)) Py_RETURN_NONE;
            return bytes_of(ids);
        },
        static_cast<PyObject*>(nullptr));
}

PyObject* encode_ids(PyObject*, PyObject* array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_CONTIG_RO | PyBUF_FORMAT) < 0) return nullptr;
    if (view.itemsize != sizeof(int32_t) || view.format == nullptr || std::string_view(view.format) != "i") {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_TypeError, "encode_ids takes an array of int32");
        return nullptr;
    }
    const auto count = static_cast<size_t>(view.len) / sizeof(int32_t);
    PyObject* json =
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(headrace::gateway::longest_json(count)));
    if (json != nullptr) {
        char* begin = PyBytes_AS_STRING(json);
        const char* end = headrace::gateway::write_ids(static_cast<const int32_t*>(view.buf), count, begin);
        _PyBytes_Resize(&json, end - begin);
    }
    PyBuffer_Release(&view);
    return json;
}

PyMethodDef kMethods[] = {
    {"read_plain", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(read_plain)), METH_FASTCALL,
     "The plain lines of a stream."},
    {"decode_ids", decode_ids, METH_O, "Token ids from JSON."},
    {"encode_ids", encode_ids, METH_O, "Token ids as JSON."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "speedups", "The stream of the gateway in C++: see README.md beside it.", -1, kMethods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

#ifndef HEADRACE_SOURCES
#error "build it with setup.py, which says what it is built from"
#endif

PyMODINIT_FUNC PyInit_speedups() {
    Ref module(PyModule_Create(&kModule));
    if (!module || PyModule_AddStringConstant(module.get(), "SOURCES", HEADRACE_SOURCES) < 0) return nullptr;
    return module.release();
}
