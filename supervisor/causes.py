"""Why a generation ended, or one of its servers: evidence in, one named cause out. Pure.

llama-server exits 1 for a bad flag, a corrupt file and a taken port alike, and what it says last is seldom what it says
first. So the words of the log are looked up in a table of patterns; the lines they were written for stand beside them
and are tests. What is not known is said to be not known: a SIGKILL has no sender, and a cause is for people. One word
only decides anything: a port conflict is not counted against the engine (`restart`).

The lines are llama-server's (b10434 and b11549), llama-swap's (v250), the built-in proxy's and our launcher's, seen
here; those of GPU backends are from their sources and from bug reports.
"""

from __future__ import annotations

import re
import signal
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from attrs import frozen

from supervisor.contract import signal_name

if TYPE_CHECKING:
    from supervisor.contract import Exit


class Word(StrEnum):
    """The name of a cause. docs/reference/exit-causes.md says of each what it means and what to do."""

    OOM_KILL = "oom kill"
    DEVICE_MEMORY = "out of device memory"
    HOST_MEMORY = "out of memory"
    DOES_NOT_FIT = "does not fit"
    PORT_CONFLICT = "port conflict"
    BAD_FLAG = "bad flag"
    MODEL_MISSING = "missing model"
    MODEL_BROKEN = "broken model"
    MISSING_LIBRARY = "missing library"
    ILLEGAL_INSTRUCTION = "illegal instruction"
    NOT_FOUND = "program not found"
    NOT_EXECUTABLE = "program not executable"
    ORPHANED = "launcher refused"
    HUNG = "hung"
    WEDGED = "wedged"
    START_LIMIT = "start limit"
    CLEAN_EXIT = "exit during start"
    SIGNAL = "signal"
    EXIT_STATUS = "exit status"
    UNKNOWN = "unknown"


@frozen
class Cause:
    """What ended it: the word, and what the evidence names (the flag, the path, the port, the signal)."""

    word: Word
    detail: str = ""

    def describe(self) -> str:
        """In one line: `bad flag: --no-such-flag`."""
        return f"{self.word.value}: {self.detail}" if self.detail else self.word.value

    @property
    def says_more(self) -> bool:
        """Whether it says more than the exit, or what it was killed for, does by itself."""
        plain = (Word.SIGNAL, Word.EXIT_STATUS, Word.START_LIMIT, Word.HUNG, Word.WEDGED, Word.UNKNOWN)
        return self.word not in plain


class Evidence(NamedTuple):
    """All that is known of an end.

    `ended` is the leader's exit, `blame` what we ourselves killed it for ("" where it ended by itself), `lines` the last
    of the generation's log. `oom` says which counter of OOM kills rose while it lived, "" for none; `kernel` is what
    the kernel's log says of its processes. `generation` is the one that ended, or whose server did; "" for none.
    """

    ended: Exit
    blame: str = ""
    lines: tuple[str, ...] = ()
    was_ready: bool = False
    oom: str = ""
    kernel: tuple[str, ...] = ()
    generation: str = ""


class Rule(NamedTuple):
    """A pattern of one line, and a line it was written for. The detail is made of the pattern's groups."""

    word: Word
    pattern: str
    example: str
    detail: str


_W = Word
RULES: Final = (
    Rule(_W.ORPHANED, r"queenright launcher: (the proxy .*(?:is dead|died).*)",
         "queenright launcher: the proxy is dead (parent is 1), so /bin/llama-server is not started",
         "the proxy is dead (parent is 1), so /bin/llama-server is not started"),
    Rule(_W.MISSING_LIBRARY, r"error while loading shared libraries: ([^:]+): (.+)",
         "llama-server: error while loading shared libraries: libcuda.so.1: cannot open shared object file: No such file or directory",
         "libcuda.so.1, cannot open shared object file: No such file or directory"),
    Rule(_W.NOT_FOUND, r"queenright launcher: (\S+) does not exist",
         "queenright launcher: /opt/llama/llama-server does not exist", "/opt/llama/llama-server"),
    Rule(_W.NOT_FOUND, r"cannot start (\S+): \[Errno 2\]",
         "cannot start /opt/llama-swap: [Errno 2] No such file or directory: '/opt/llama-swap'", "/opt/llama-swap"),
    Rule(_W.NOT_FOUND, r"fork/exec (\S+): no such file or directory",
         "failed to start command '/opt/server --port 1': fork/exec /opt/server: no such file or directory", "/opt/server"),
    Rule(_W.NOT_EXECUTABLE, r"queenright launcher: (\S+) cannot be executed: (.+)",
         "queenright launcher: /opt/llama/llama-server cannot be executed: Exec format error",
         "/opt/llama/llama-server, Exec format error"),
    Rule(_W.NOT_EXECUTABLE, r"cannot start (\S+): \[Errno (?:8|13)\] ([^:]+)",
         "cannot start /opt/llama-swap: [Errno 13] Permission denied: '/opt/llama-swap'", "/opt/llama-swap, Permission denied"),
    Rule(_W.NOT_EXECUTABLE, r"fork/exec (\S+): (permission denied|exec format error)",
         "failed to start command '/opt/server --port 1': fork/exec /opt/server: permission denied",
         "/opt/server, permission denied"),
    Rule(_W.BAD_FLAG, r"error: invalid argument: (\S+)", "error: invalid argument: --no-such-flag", "--no-such-flag"),
    Rule(_W.BAD_FLAG, r'error while handling argument "([^"]+)": (.+)',
         'error while handling argument "--cache-type-k": Unsupported cache type: q9',
         "--cache-type-k, Unsupported cache type: q9"),
    Rule(_W.BAD_FLAG, r"(V cache quantization requires flash_attn)",
         "0.00.236.530 E llama_init_from_model: V cache quantization requires flash_attn",
         "V cache quantization requires flash_attn"),
    Rule(_W.BAD_FLAG, r"error: unrecognized arguments: (.+)", "serve.py: error: unrecognized arguments: --nope", "--nope"),
    Rule(_W.BAD_FLAG, r"flag provided but not defined: (\S+)", "flag provided but not defined: -nope", "-nope"),
    Rule(_W.PORT_CONFLICT, r"couldn't bind HTTP server socket, hostname: .*port: (\d+)",
         "0.00.030.024 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 28112", "28112"),
    Rule(_W.PORT_CONFLICT, r"port (\d+)(?: \(\S+\))? was taken by another program",
         "port 28112 (chat) was taken by another program", "28112"),
    Rule(_W.PORT_CONFLICT, r"listen tcp \S*:(\d+): bind: address already in use",
         'http server error error="listen tcp 127.0.0.1:9999: bind: address already in use"', "9999"),
    Rule(_W.PORT_CONFLICT, r"-listen \S*:(\d+): cannot listen: .*[Aa]ddress already in use",
         "-listen 127.0.0.1:9999: cannot listen: [Errno 98] Address already in use", "9999"),
    Rule(_W.PORT_CONFLICT, r"\[Errno 98\].*\('[^']*', (\d+)\)\S* .*address already in use",
         "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use", "8000"),
    Rule(_W.DOES_NOT_FIT, r"^(\S+/\S+) does not fit: (.+)$",
         "chat/chat does not fit: 4,096 tokens for 1 need 21.50 GiB of NVIDIA A10, and 9.00 GiB can be had",
         "chat/chat, 4,096 tokens for 1 need 21.50 GiB of NVIDIA A10, and 9.00 GiB can be had"),
    Rule(_W.DEVICE_MEMORY, r"allocating ([0-9.]+ MiB) on device (\d+): \w+ failed: out of memory",
         "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9728.00 MiB on device 0: cudaMalloc failed: out of memory",
         "9728.00 MiB, 0"),
    Rule(_W.DEVICE_MEMORY, r"((?:CUDA|ROCm|HIP) error: out of memory)", "CUDA error: out of memory", "CUDA error: out of memory"),
    Rule(_W.DEVICE_MEMORY, r"ggml_vulkan: (Device memory allocation of size \d+ failed)",
         "ggml_vulkan: Device memory allocation of size 1073741824 failed.",
         "Device memory allocation of size 1073741824 failed"),
    Rule(_W.DEVICE_MEMORY, r"(ErrorOutOfDeviceMemory)", "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
         "ErrorOutOfDeviceMemory"),
    Rule(_W.DEVICE_MEMORY, r"ggml_metal\w*: error: (failed to allocate buffer, size = +[0-9.]+ MiB)",
         "ggml_metal_buffer_init: error: failed to allocate buffer, size = 8192.00 MiB",
         "failed to allocate buffer, size = 8192.00 MiB"),
    Rule(_W.DEVICE_MEMORY, r"(kIOGPUCommandBufferCallbackErrorOutOfMemory)",
         "ggml_metal_graph_compute: command buffer 0 failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
         "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    Rule(_W.DEVICE_MEMORY, r"(CUDA out of memory\. Tried to allocate [0-9.]+ \w+)",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.1 GiB",
         "CUDA out of memory. Tried to allocate 2.50 GiB"),
    Rule(_W.HOST_MEMORY, r"insufficient memory \((attempted to allocate [0-9.]+ MB)\)",
         "0.00.579.833 E ggml_aligned_malloc: insufficient memory (attempted to allocate 43948.12 MB)",
         "attempted to allocate 43948.12 MB"),
    Rule(_W.HOST_MEMORY, r"(failed to allocate buffer for kv cache)",
         "0.00.590.069 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
         "failed to allocate buffer for kv cache"),
    Rule(_W.HOST_MEMORY, r"(std::bad_alloc|MemoryError)",
         "terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"),
    Rule(_W.MODEL_MISSING, r"failed to open GGUF file '(.+)' \((.+)\)",
         "0.00.011.638 E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)",
         "/nope.gguf, No such file or directory"),
    Rule(_W.MODEL_BROKEN, r"gguf_init_from_\w+: (invalid magic characters: .+|failed to read .+)",
         "0.00.010.267 E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'",
         "invalid magic characters: 'hell', expected 'GGUF'"),
    Rule(_W.MODEL_BROKEN, r"error loading model: (tensor .+ is not within the file bounds.*)",
         "0.00.014.239 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete",
         "tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete"),
    Rule(_W.MODEL_BROKEN, r"error loading model: (?:error loading model architecture: )?(unknown model architecture: .+)",
         "E llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'nonesuch'",
         "unknown model architecture: 'nonesuch'"),
    Rule(_W.MODEL_BROKEN, r"failed to load model, '(.+)'",
         "0.00.011.956 E srv    load_model: failed to load model, '/m/odd.gguf'", "/m/odd.gguf"),
    Rule(_W.ILLEGAL_INSTRUCTION, r"(exited unexpectedly) \(-4\)",
         "[WARN] <chat> upstream process exited unexpectedly (-4)", "exited unexpectedly"),
    Rule(_W.ILLEGAL_INSTRUCTION, r"traps: (\S+) trap invalid opcode",
         "traps: llama-server[4242] trap invalid opcode ip:55d0 sp:7ffc error:0 in libggml-cpu.so[7f00+1000]",
         "llama-server[4242]"),
)  # fmt: skip

_AT_ANY_TIME = frozenset(
    {_W.DEVICE_MEMORY, _W.HOST_MEMORY, _W.ILLEGAL_INSTRUCTION, _W.ORPHANED, _W.NOT_FOUND, _W.NOT_EXECUTABLE}
)
"""What a line can still say of an end after the engine served; the rest of its log was a start that went well."""

_HARMLESS = re.compile(r"[0-9.]+ [IWD] ")
"""llama.cpp's own level behind the time since its start: information, warning, debug."""

_MODEL_PATH = re.compile(r"(?:loading model|failed to load model,?) '(.+)'")
_SERVERS_EXIT = re.compile(r"exited unexpectedly \((-?\d+)\)")
CPU_STEP = "this build wants a newer CPU: take one that chooses at run time, or an older one"


def name(evidence: Evidence) -> Cause:
    """The cause. What we killed it for comes first, then what it said itself, then what the kernel says of it."""
    for word in (Word.HUNG, Word.WEDGED):
        if re.search(rf"\b{word.value}\b", evidence.blame):
            return Cause(word, evidence.blame)
    ended, by_itself = evidence.ended, not evidence.blame
    killed = by_itself and ended.code in (2, 3)
    if evidence.oom and killed and ended.status == signal.SIGKILL:
        return _oom(evidence)
    if (said := _said(evidence)) is not None:
        return said
    if evidence.oom:
        return _oom(evidence)
    if killed:
        return _signal(ended.status)
    exits = [int(found[1]) for line in evidence.lines if (found := _SERVERS_EXIT.search(line))]
    if "not ready within" in evidence.blame or "timed out" in evidence.blame:
        return Cause(Word.START_LIMIT, evidence.blame)
    if by_itself and not evidence.was_ready and ended.status == 0:
        return Cause(Word.CLEAN_EXIT, "its proxy ended with exit status 0 before it was ready")
    if by_itself:
        return _status(ended.status)
    if exits and exits[-1] < 0:
        return _signal(-exits[-1])
    if exits and exits[-1] == 0:
        return Cause(Word.CLEAN_EXIT, "a server ended with exit status 0 before it was ready")
    return _status(exits[-1]) if exits else Cause(Word.UNKNOWN, evidence.blame)


@cache
def _compiled() -> tuple[tuple[Rule, re.Pattern[str]], ...]:
    """The table. Made for the first end that left words, not at each start of a keeper: it takes 6 ms (measured)."""
    return tuple((rule, re.compile(rule.pattern)) for rule in RULES)


def _said(evidence: Evidence) -> Cause | None:
    """By the table. A rule that stands earlier in it wins over an earlier line: of a load that fails for want of memory
    llama.cpp says at last that the model failed to load."""
    served = evidence.was_ready and not evidence.blame
    lines = [evidence.blame, *(line for line in evidence.lines if not _HARMLESS.match(line)), *evidence.kernel]
    for rule, pattern in _compiled() if any(lines) else ():
        if served and rule.word not in _AT_ANY_TIME:
            continue
        for line in lines:
            if (found := pattern.search(line)) is not None:
                return _detailed(Cause(rule.word, ", ".join(group for group in found.groups() if group)), evidence)
    return None


def _detailed(cause: Cause, evidence: Evidence) -> Cause:
    """With what other lines add: the path of a model that is broken, and what an illegal instruction means."""
    if cause.word is Word.ILLEGAL_INSTRUCTION:
        return Cause(cause.word, CPU_STEP)
    paths = [found[1] for line in evidence.lines if (found := _MODEL_PATH.search(line))]
    if cause.word is Word.MODEL_BROKEN and paths and paths[-1] not in cause.detail:
        return Cause(cause.word, f"{paths[-1]}, {cause.detail}")
    return cause


def _oom(evidence: Evidence) -> Cause:
    words = next((line for line in evidence.kernel if "Killed process" in line), "")
    return Cause(Word.OOM_KILL, f"{words} ({evidence.oom})" if words else evidence.oom)


def _signal(number: int) -> Cause:
    if number == signal.SIGILL:
        return Cause(Word.ILLEGAL_INSTRUCTION, CPU_STEP)
    by_whom = ", sent by whom is unknown" if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) else ""
    return Cause(Word.SIGNAL, signal_name(number) + by_whom)


def _status(status: int) -> Cause:
    special = {126: Word.NOT_EXECUTABLE, 127: Word.NOT_FOUND}
    return Cause(special.get(status, Word.EXIT_STATUS), "" if status in special else str(status))
