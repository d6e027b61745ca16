// The extension module `headrace.streams.native.speedups`.

#include "columns/event_columns.hpp"
#include "columns/trajectory_columns.hpp"
#include "columns/trajectory_fields.hpp"
#include "ingest/arrival.hpp"
#include "facts.hpp"
#include "ingest/open_state.hpp"
#include "ingest/ordinary_events.hpp"
#include "ingest/partition_log.hpp"
#include "summary/trajectory_summary.hpp"
#include "writer/trajectory_writer.hpp"

namespace {

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "speedups", "The per-event path in C++: see README.md beside it.", -1,
    nullptr, nullptr, nullptr, nullptr, nullptr,
};

// The fields of each event type that this module was built for.
PyObject* event_fields() {
    headrace::Ref fields(PyDict_New());
    if (!fields) return nullptr;
    for (int fact = 0; fact < headrace::kFacts; ++fact) {
        const std::string_view names = headrace::kFactFields[fact];
        const headrace::Ref text(PyUnicode_FromStringAndSize(names.data(), static_cast<Py_ssize_t>(names.size())));
        if (!text || PyDict_SetItemString(fields.get(), headrace::kFactNames[fact].data(), text.get()) < 0) return nullptr;
    }
    return fields.release();
}

}  // namespace

#ifndef HEADRACE_SOURCES
#error "build it with setup.py, which says what it is built from"
#endif

PyMODINIT_FUNC PyInit_speedups() {
    headrace::Ref module(PyModule_Create(&kModule));
    if (!module) return nullptr;
    for (PyTypeObject* type : {&headrace::ArrivalType, &headrace::EventColumnsType, &headrace::OpenStateType,
                               &headrace::OrdinaryEventsType, &headrace::PartitionLogType,
                               &headrace::TrajectoryColumnsType, &headrace::TrajectorySummaryType,
                               &headrace::TrajectoryWriterType}) {
        if (PyModule_AddType(module.get(), type) < 0) return nullptr;
    }
    if (PyModule_AddStringConstant(module.get(), "SOURCES", HEADRACE_SOURCES) < 0) return nullptr;
    const headrace::Ref fields(event_fields());
    if (!fields || PyModule_AddObjectRef(module.get(), "EVENT_FIELDS", fields.get()) < 0) return nullptr;
    const headrace::Ref columns(headrace::trajectory_columns());
    if (!columns || PyModule_AddObjectRef(module.get(), "TRAJECTORY_COLUMNS", columns.get()) < 0) return nullptr;
    if (PyModule_AddStringConstant(module.get(), "TRAJECTORY_FIELDS", headrace::kTrajectoryKnown.data()) < 0) return nullptr;
    return module.release();
}
