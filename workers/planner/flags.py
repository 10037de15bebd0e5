"""llama-server's flags that memory depends on: read out of a launch's arguments, decided once, and said again in the form
that the binary's own --help knows. Launch, estimate and self-check all go through `settled` and `words`.

What somebody gives in `arguments` counts as asked for; the flags that are accounted for are taken out of them and said
anew, so that an estimate and a launch can never differ.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import evolve, field, frozen

from supervisor.errors import ConfigError
from workers.planner.kv import CacheType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALL: Final = 1 << 20
"""As a number of layers: all of them."""

DEFAULT_CHECKPOINTS: Final = 32
"""Context checkpoints per sequence (llama-server b10068's default)."""


class Flash(StrEnum):
    """Flash attention. AUTO leaves it to the engine, which takes it wherever the device can."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"


@frozen
class Settings:
    """What was asked for, or (`settled`) what is done. `notes` say what was changed and why."""

    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    flash: Flash = Flash.AUTO
    unified: bool = False
    swa_full: bool = False
    batch: int = 2048
    ubatch: int = 512
    cache_ram_mib: int = 0
    checkpoints: int = DEFAULT_CHECKPOINTS
    cpu_moe: int | None = None
    """Layers, from the first, whose experts stay in system memory; None: the planner's to say."""
    gpu_layers: int | None = None
    kv_offload: bool = True
    fit: bool | None = None
    projector: str = ""
    notes: tuple[str, ...] = field(default=(), eq=False)


_VALUES: Final = {
    "--cache-type-k": "type_k", "-ctk": "type_k",
    "--cache-type-v": "type_v", "-ctv": "type_v",
    "--batch-size": "batch", "-b": "batch",
    "--ubatch-size": "ubatch", "-ub": "ubatch",
    "--cache-ram": "cache_ram_mib", "-cram": "cache_ram_mib",
    "--ctx-checkpoints": "checkpoints", "--swa-checkpoints": "checkpoints", "-ctxcp": "checkpoints",
    "--n-cpu-moe": "cpu_moe", "-ncmoe": "cpu_moe",
    "--gpu-layers": "gpu_layers", "--n-gpu-layers": "gpu_layers", "-ngl": "gpu_layers",
    "--mmproj": "projector", "-mm": "projector",
    "--fit": "fit", "-fit": "fit",
}  # fmt: skip
_SWITCHES: Final[dict[str, tuple[str, bool | int]]] = {
    "--kv-unified": ("unified", True), "-kvu": ("unified", True),
    "--no-kv-unified": ("unified", False), "-no-kvu": ("unified", False),
    "--swa-full": ("swa_full", True),
    "--cpu-moe": ("cpu_moe", ALL), "-cmoe": ("cpu_moe", ALL),
    "--kv-offload": ("kv_offload", True), "-kvo": ("kv_offload", True),
    "--no-kv-offload": ("kv_offload", False), "-nkvo": ("kv_offload", False),
}  # fmt: skip
_FLASH: Final = ("--flash-attn", "-fa")
_KEPT: Final = frozenset({"projector"})
"""Accounted for, and passed on as it stands."""


def settings_of(arguments: Sequence[str], base: Settings | None = None) -> tuple[Settings, tuple[str, ...]]:
    """What the arguments ask for, and those of them that are not the planner's. Raises ConfigError for a value that is
    none, and for pairs that undo each other."""
    found = base or Settings()
    rest: list[str] = []
    given: set[str] = set()
    change: dict[str, Any]
    words = list(arguments)
    at = 0
    while at < len(words):
        flag, equals, attached = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
        at += 1
        if flag in _FLASH:
            value = attached
            if not equals and at < len(words) and words[at] in ("on", "off", "auto", "1", "0", "true", "false"):
                value, at = words[at], at + 1
            flash = {"": "on", "1": "on", "true": "on", "0": "off", "false": "off"}.get(value, value)
            found = evolve(found, flash=_parsed("flash", flag, flash))
        elif flag in _SWITCHES:
            name, meaning = _SWITCHES[flag]
            given.add(flag)
            change = {name: meaning}
            found = evolve(found, **change)
        elif flag in _VALUES:
            if not equals and at >= len(words):
                raise ConfigError(f"arguments: {flag} needs a value", "add one, or remove it")
            value = attached if equals else words[at]
            name = _VALUES[flag]
            if name in _KEPT:
                rest += [flag, value]
            at += 0 if equals else 1
            given.add(flag)
            change = {name: _parsed(name, flag, value)}
            found = evolve(found, **change)
        else:
            rest.append(words[at - 1])
    _refuse_contradictions(found, given)
    return found, tuple(rest)


PREFIX: Final = "LLAMA_ARG_"
"""Begins the variables by which a llama-server is told what no flag says (its --help, b10068)."""
_VARIABLES: Final = {
    "BATCH": "--batch-size", "UBATCH": "--ubatch-size", "CACHE_TYPE_K": "--cache-type-k", "CACHE_TYPE_V": "--cache-type-v",
    "FLASH_ATTN": "--flash-attn", "FIT": "--fit", "N_GPU_LAYERS": "--n-gpu-layers", "N_CPU_MOE": "--n-cpu-moe",
    "CTX_CHECKPOINTS": "--ctx-checkpoints", "MMPROJ": "--mmproj", "DEVICE": "--device", "MAIN_GPU": "--main-gpu",
    "SPLIT_MODE": "--split-mode", "TENSOR_SPLIT": "--tensor-split", "OVERRIDE_TENSOR": "--override-tensor",
}  # fmt: skip
_SWITCHED: Final[dict[str, tuple[str, ...]]] = {
    "SWA_FULL": ("", "--swa-full"), "CPU_MOE": ("", "--cpu-moe"),
    "KV_OFFLOAD": ("--no-kv-offload", "--kv-offload"), "NO_KV_OFFLOAD": ("--no-kv-offload",) * 2,
}  # fmt: skip
"""Variables that are off or on, and the flags for either."""
_OVERRULED: Final = {
    "CTX_SIZE": "`context`", "N_PARALLEL": "`sequences`", "KV_UNIFIED": "`pool`", "CACHE_RAM": "`cache_ram_mib`",
}  # fmt: skip
"""What we always say ourselves, and where it is to be given."""
_ON, _OFF = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")
"""As llama.cpp's common/arg.cpp reads them."""


def of_variables(environment: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """What a group's environment asks of its servers that memory depends on, as arguments to stand before the launch's own;
    and the environment without it. It is said by flags then, so that a plan and a server cannot differ. Raises ConfigError
    for a value that is none."""
    said: list[str] = []
    rest = dict(environment)
    for name in sorted(environment):
        short = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
        if short not in _VARIABLES and short not in _SWITCHED:
            continue
        del rest[name]
        try:
            words = _words_of(short, environment[name])
            settings_of(words)
        except ConfigError as error:
            raise ConfigError(f"environment: {name} cannot be {environment[name]!r}", error.next_step) from None
        said += words
    return tuple(said), rest


def _words_of(short: str, value: str) -> list[str]:
    """Raises ConfigError for what is neither on nor off."""
    if short in _SWITCHED:
        off, on = _SWITCHED[short]
        if off != on and off and value not in _ON + _OFF:
            raise ConfigError("neither on nor off", "`on` and `off` are what it takes")
        flag = on if value in _ON else off
        return [flag] if flag else []
    flag = _VARIABLES[short]
    if short in ("FLASH_ATTN", "FIT"):
        value = "on" if value in _ON else "off" if value in _OFF else value
    # Flash attention may stand without a value; and of the others a server takes none with `=`.
    return [f"{flag}={value}"] if short == "FLASH_ATTN" else [flag, value]


def overruled(environment: Iterable[str]) -> list[str]:
    """Of a group's environment what comes to nothing, each a sentence."""
    return [
        f"{PREFIX}{short} in `environment` comes to nothing: give {key} instead"
        for short, key in _OVERRULED.items()
        if PREFIX + short in environment
    ]


def _parsed(name: str, flag: str, value: str) -> Any:
    wrong = ConfigError(f"arguments: {flag} cannot be {value!r}", "`llama-server --help` says what it takes")
    try:
        match name:
            case "type_k" | "type_v":
                return CacheType(value)
            case "flash":
                return Flash(value)
            case "fit":
                return {"on": True, "off": False, "1": True, "0": False}[value]
            case "projector":
                return value
            case "gpu_layers":
                return {"auto": None, "-1": None, "all": ALL, "-2": ALL}[value] if not value.isdecimal() else int(value)
            case "cache_ram_mib":
                number = int(value)
                if number < 0:
                    raise ConfigError(
                        f"arguments: {flag} {value} would let the prompt cache grow without limit",
                        "set `cache_ram_mib` to what it may take",
                    )
                return number
        number = int(value)
    except (ValueError, KeyError):
        raise wrong from None
    if number < 0 or (number == 0 and name in ("batch", "ubatch")):
        raise wrong
    return number


def _refuse_contradictions(found: Settings, given: set[str]) -> None:
    """Pairs of which the one silently undoes the other (mohitsoni48/TurboLLM#99): an explicit layer count or a placement
    of experts turns the engine's own fitting off, and says so in a log line only."""
    if found.fit and found.gpu_layers is not None:
        raise ConfigError("arguments: --fit on does nothing beside an explicit --n-gpu-layers", "remove one of the two")
    if found.fit and found.cpu_moe is not None:
        raise ConfigError("arguments: --fit on does nothing beside --cpu-moe or --n-cpu-moe", "remove one of the two")
    if given & {"--cpu-moe", "-cmoe"} and given & {"--n-cpu-moe", "-ncmoe"}:
        raise ConfigError("arguments: --cpu-moe and --n-cpu-moe say two things", "remove one of the two")


def settled(asked: Settings) -> Settings:
    """What is done: the one place where flash attention and the types of the cache are decided.

    The engine refuses to load a quantised V without flash attention (seen: exit status 1). Where it was turned off, V
    falls back to f16; where it was left open, it is turned on.
    """
    if not asked.type_v.is_quantised:
        return asked
    if asked.flash is Flash.OFF:
        note = f"V is kept as f16, not {asked.type_v}: a quantised V needs flash attention, and that is off"
        return evolve(asked, type_v=CacheType.F16, notes=(*asked.notes, note))
    return evolve(asked, flash=Flash.ON)


class Help(NamedTuple):
    """What a binary's --help says it takes. An empty one (it could not be read) knows what b10068 knows."""

    flags: frozenset[str] = frozenset()
    flash_takes_value: bool = True

    def knows(self, flag: str) -> bool:
        """Whether the binary takes the flag."""
        return not self.flags or flag in self.flags


def help_of(text: str) -> Help:
    """Read a --help. `--flash-attn` was a switch until August 2025 and has needed a value since (yazon/flexllama#15)."""
    flags = frozenset(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", text))
    line = next((line for line in text.splitlines() if re.search(r"--flash-attn\b", line)), "")
    after = line.partition("--flash-attn")[2]
    takes = bool(re.match(r"[ =][\[{<]?(?:on|FA\b|[A-Z]{2,}\b)", after)) if line else True
    return Help(flags, takes)


SWITCH: Final = "--flash-attn:switch"
"""Among known flags: this build's --flash-attn takes no value."""


def known_of(flags: str) -> Help:
    """From the words that a kind noted of a build."""
    found = frozenset(flags.split())
    return Help(found | {"--help"}, SWITCH not in found)  # an empty set would know everything


SPELLINGS: Final = {
    "--cache-type-k": ("-ctk",),
    "--cache-type-v": ("-ctv",),
    "--ctx-checkpoints": ("--swa-checkpoints", "-ctxcp"),
    "--n-cpu-moe": ("-ncmoe", "--override-tensor", "-ot"),
    "--n-gpu-layers": ("--gpu-layers", "-ngl"),
}
"""What a build may have instead, the likest first."""

MANY_LAYERS: Final = 999
"""All of them, in the form that every build takes: `all` is of December 2025."""


def words(done: Settings, known: Help, *, cpu_moe: int = 0, layers: int = 0) -> tuple[str, ...]:
    """The settings as llama-server's arguments. What decides about memory and differs between builds is always said:
    how the cache is divided, the prompt cache. `cpu_moe` of `layers` layers keep their experts in system memory.

    A flag that the build has under no name is left out; `unsayable` says which of those a plan rests on."""
    said: list[str] = []

    def say(flag: str, *values: object) -> None:
        name = next((one for one in (flag, *SPELLINGS.get(flag, ())) if known.knows(one)), None)
        if name is not None:
            said.extend([name, *map(str, values)])

    say("--kv-unified" if done.unified else "--no-kv-unified")
    say("--cache-ram", done.cache_ram_mib)
    if done.flash is not Flash.AUTO:
        if known.flash_takes_value:
            say("--flash-attn", done.flash.value)
        elif done.flash is Flash.ON:
            say("--flash-attn")
    if done.type_k is not CacheType.F16:
        say("--cache-type-k", done.type_k.value)
    if done.type_v is not CacheType.F16:
        say("--cache-type-v", done.type_v.value)
    usual = Settings()
    if done.ubatch != usual.ubatch:
        say("--ubatch-size", done.ubatch)
    if done.batch != usual.batch:
        say("--batch-size", done.batch)
    if done.swa_full:
        say("--swa-full")
    if not done.kv_offload:
        say("--no-kv-offload")
    if done.checkpoints != DEFAULT_CHECKPOINTS:
        say("--ctx-checkpoints", done.checkpoints)
    if done.gpu_layers is not None:
        say("--n-gpu-layers", MANY_LAYERS if done.gpu_layers >= ALL else done.gpu_layers)
    if done.fit is not None:
        say("--fit", "on" if done.fit else "off")
    if cpu_moe:
        said.extend(_experts_in_system_memory(cpu_moe, layers, known))
    return tuple(said)


def _experts_in_system_memory(cpu_moe: int, layers: int, known: Help) -> list[str]:
    """--cpu-moe and --n-cpu-moe are short for --override-tensor, which is all that builds before August 2025 have."""
    if cpu_moe >= layers and known.knows("--cpu-moe"):
        return ["--cpu-moe"]
    for name in ("--n-cpu-moe", "-ncmoe"):
        if known.knows(name):
            return [name, str(cpu_moe)]
    for name in ("--override-tensor", "-ot"):
        if known.knows(name):
            which = "|".join(map(str, range(cpu_moe)))
            return [name, rf"blk\.({which})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"]
    return []


def unsayable(done: Settings, known: Help, *, cpu_moe: int = 0, layers: int = 0) -> list[str]:
    """What of these settings a plan rests on and this build has no words for."""
    said = words(done, known, cpu_moe=cpu_moe, layers=layers)

    def lacks(flag: str) -> bool:
        return not {flag, *SPELLINGS.get(flag, ())} & set(said)

    wanted = {
        "--flash-attn": done.flash is Flash.ON,
        "--cache-type-k": done.type_k is not CacheType.F16,
        "--cache-type-v": done.type_v is not CacheType.F16,
        "--n-gpu-layers": done.gpu_layers is not None,
        "--kv-unified": done.unified,
        "--swa-full": done.swa_full,
        "--no-kv-offload": not done.kv_offload,
    }
    found = [flag for flag, is_wanted in wanted.items() if is_wanted and lacks(flag)]
    if cpu_moe and not _experts_in_system_memory(cpu_moe, layers, known):
        found.append("--n-cpu-moe")
    return found
