"""llama.cpp's own estimate of what a llama-server command line takes, out of the wheel `xllamacpp`; nothing is loaded.

    python -P /absolute/path/workers/xllamacpp_fit.py LLAMA-SERVER-ARGUMENT...

A line for each device on stdout, the last one's name is Host: `NAME MODEL CONTEXT COMPUTE`, in MiB, as llama.cpp's own
`llama-fit-params --fit-print on` prints them. Model and context are exact, compute is an upper bound (engine's own
lines compared). A program of its own, for llama.cpp aborts (SIGABRT) over a model that it cannot read.

Standard library and that wheel only, as workers/xllamacpp_server.py, whose way to the parser it uses. The three
functions below are exported and nobody promised them to us: the wheel is pinned, and one without them is refused.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

MODEL_PARAMS = "_Z28common_model_params_to_llamaR13common_params"
"""llama_model_params common_model_params_to_llama(common_params &), in common/common.h."""

CONTEXT_PARAMS = "_Z30common_context_params_to_llamaRK13common_params"
"""llama_context_params common_context_params_to_llama(const common_params &), there."""

FIT_PRINT = "_Z16common_fit_printPKcP18llama_model_paramsP20llama_context_params"
"""void common_fit_print(const char *, llama_model_params *, llama_context_params *), in common/fit.h."""


class Returned(ctypes.Structure):
    """Room for a struct that is returned by value: its size is not ours to know, and both are below 300 bytes."""

    _fields_ = (("bytes", ctypes.c_char * 8192),)


def main(arguments: list[str]) -> int:
    """Print the estimate. Returns an exit status; llama.cpp may end the process by itself."""
    server: Any = _beside("xllamacpp_server.py")
    try:
        params = server.parse(arguments)
        if params is None:
            return 1  # llama.cpp has said why
        from xllamacpp import xllamacpp as extension

        library = ctypes.CDLL(extension.__file__)
        functions = [getattr(library, name) for name in (MODEL_PARAMS, CONTEXT_PARAMS, FIT_PRINT)]
    except (server.UnusableWheelError, AttributeError) as error:
        sys.stderr.write(f"error: no estimate from this xllamacpp: {error}\n")
        return 1
    model_params, context_params, fit_print = functions
    made = []
    for function in (model_params, context_params):
        function.restype, function.argtypes = Returned, [ctypes.c_void_p]
        made.append(function(server.struct_of(params)))
    fit_print.restype = None
    fit_print.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    fit_print(os.fsencode(params.model.path), *(ctypes.addressof(one) for one in made))
    ctypes.CDLL(None).fflush(None)
    os._exit(0)  # not by way of destructors of a wheel that is not ours


def _beside(name: str) -> Any:
    """A program of ours that lies beside this one: with -P, and started by its path, it is on no search path."""
    spec = importlib.util.spec_from_file_location(name.partition(".")[0], Path(__file__).resolve().with_name(name))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
