#pragma once

#include "python.hpp"

namespace headrace {

extern PyTypeObject TrajectoryColumnsType;

// The columns that it fills: a dict of their forms by name. Null with Python's error set.
PyObject* trajectory_columns();

}  // namespace headrace
