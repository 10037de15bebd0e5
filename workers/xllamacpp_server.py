"""A llama-server made of the wheel `xllamacpp`, for machines where no wheel's ready-made executable runs.

    python -P /absolute/path/workers/xllamacpp_server.py LLAMA-SERVER-ARGUMENT...

Standard library and that wheel only; writes no file. Flags and LLAMA_ARG_* variables are llama-server's, because
llama.cpp's own parser reads them: the wheel has no parser of its own, but exports `common_params_parse`, and that fills
the struct inside a `CommonParams`. Nobody promised us the struct's place or the enum value below, so the wheel is
pinned, the place is proved before anything is written there, and a wheel that moved it is refused.

Exit statuses are llama-server's: 0 after SIGTERM, SIGINT, --help, --version; 1 for anything that it cannot use, with
the reason on stderr. Until its last line at start ("ready", about a millisecond after /health turns 200) a signal ends
it by the signal itself: loading holds the GIL, so that a handler of ours would run only afterwards.

In one thing it differs: a stop does not wait for open requests. llama-server does, but completes none of them (its loop
has ended by then), and takes 30 s or until the client goes. The wheel's own way to stop, deleting the Server, also
waits for ever when it comes before the server's loop has begun, which it may at any time after /health is 200 (seen 2
times in 12 on a busy machine). Nothing is lost: it has no files, and the kernel closes the rest.

`--help` takes 80 ms, 60 of them the import of the wheel; ready 0.15 s later than the executable (measured).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import FrameType

PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
"""bool common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **)), in common/arg.h."""

EXAMPLE_SERVER = 12
"""LLAMA_EXAMPLE_SERVER, of enum llama_example in common/common.h."""

DEFAULT_PORT = 8080
"""llama-server's. The wheel's own is 0, any free port."""

FIRST_FIELDS = {"n_predict": 0x11AA5501, "n_ctx": 0x22BB6602, "n_batch": 0x33CC7703, "n_ubatch": 0x44DD0804}
"""The first members of struct common_params, 32 bits each, and numbers that are not there by chance."""

READY = "ready: "
"""Begins the line that says so, with the address. llama.cpp's own line comes from another thread, sooner or later."""

STOPPING = (signal.SIGTERM, signal.SIGINT)


class UnusableWheelError(Exception):
    """The wheel is not one that this program can work with."""


def main(arguments: list[str]) -> int:
    """Parse, load, serve until told to stop, then end the process. Returns an exit status if it does not come to that;
    llama.cpp's parser exits by itself at --help."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)  # Python has set a handler for SIGINT
    sys.dont_write_bytecode = True
    try:
        params = parse(arguments)
    except UnusableWheelError as error:
        return complain(f"{error}; run `pip install --force-reinstall 'queenright[engine]'`")
    if params is None:
        return 1  # llama.cpp has said why
    import xllamacpp

    try:
        server = xllamacpp.Server(params)  # meanwhile its own threads answer 503
    except Exception as error:  # noqa: BLE001 - RuntimeError today; what is wrong stands in llama.cpp's log on stderr
        return complain(f"the server did not start: {error}")
    wait_for_stop(f"{READY}{server.listening_address}\n")
    os._exit(0)  # not by way of the Server's destructor: see above


def parse(arguments: list[str]) -> Any:
    """An xllamacpp.CommonParams as llama-server's command line says, or None after an error message of llama.cpp's.

    Raises UnusableWheelError. Ends the process at --help and the like.
    """
    try:
        import xllamacpp
        from xllamacpp import xllamacpp as extension
    except ImportError as error:
        raise UnusableWheelError(f"the wheel xllamacpp cannot be imported ({error})") from None
    try:
        function = getattr(ctypes.CDLL(extension.__file__), PARSE)  # loaded already: this gives the same library
    except (OSError, AttributeError):
        raise UnusableWheelError("this xllamacpp does not export llama.cpp's argument parser") from None
    function.restype = ctypes.c_bool
    function.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    prove_layout(xllamacpp.CommonParams())
    params = xllamacpp.CommonParams()
    params.port = DEFAULT_PORT
    argv = [b"llama-server", *map(os.fsencode, arguments)]
    array = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
    return params if function(len(argv), array, struct_of(params), EXAMPLE_SERVER, None) else None


def struct_of(params: object) -> int:
    """Where the C++ struct of an extension object lies: right behind the head that every Python object has."""
    return id(params) + object.__basicsize__


def prove_layout(params: Any) -> None:
    """Show with an object that is thrown away afterwards that struct_of() is right. Raises UnusableWheelError."""
    size = ctypes.sizeof(ctypes.c_int32) * len(FIRST_FIELDS)
    if sys.implementation.name != "cpython" or type(params).__basicsize__ < object.__basicsize__ + size:
        raise UnusableWheelError("this Python or xllamacpp keeps llama.cpp's parameters elsewhere")
    try:
        for name, number in FIRST_FIELDS.items():
            setattr(params, name, number)
    except (AttributeError, TypeError, OverflowError) as error:
        raise UnusableWheelError(f"this xllamacpp has other parameters ({error})") from None
    if list((ctypes.c_int32 * len(FIRST_FIELDS)).from_address(struct_of(params))) != list(FIRST_FIELDS.values()):
        raise UnusableWheelError("this xllamacpp keeps llama.cpp's parameters elsewhere")


def wait_for_stop(ready: str) -> None:
    """Say `ready` and return at the first SIGTERM or SIGINT.

    The signal may land on a thread of llama.cpp's. Python's handler in C runs there all the same, and its byte wakes
    this thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in STOPPING:
        signal.signal(number, leave_it_to_the_pipe)
    sys.stderr.write(ready)
    sys.stderr.flush()
    os.read(reader, 1)


def leave_it_to_the_pipe(number: int, frame: FrameType | None) -> None:
    """A handler, so that Python writes the signal's number to the wakeup descriptor."""


def complain(text: str) -> int:
    """One line on stderr, which is the group's log. Returns exit status 1."""
    sys.stderr.write(f"error: {text}\n")
    return 1


def run() -> NoReturn:
    """The program."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
