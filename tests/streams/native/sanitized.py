"""A pytest plugin: the tests run with the extension module at ``HEADRACE_SANITIZED``, which sanitizers watch; it takes
the place of ``HEADRACE_SANITIZED_MODULE``.

``make sanitize`` builds it and sets that up. A report of AddressSanitizer or UBSan ends the process, and so the tests.
"""

import importlib.util
import os
import sys

NAME = os.environ.get("HEADRACE_SANITIZED_MODULE", "headrace.streams.native.speedups")

_spec = importlib.util.spec_from_file_location(NAME, os.environ["HEADRACE_SANITIZED"])
if _spec is None or _spec.loader is None:
    raise ImportError(f"HEADRACE_SANITIZED is no extension module: {os.environ['HEADRACE_SANITIZED']}")
sys.modules[NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[NAME])
