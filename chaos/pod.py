"""`python -m chaos.pod`: sweep, quants, soak and agents one after the other on one machine, with a report, packed.

For a rented machine with GPUs: one command, and one file to take away (docs/runbook-gpu-pod.md). It is a module and no shell
script beside the pages, so that it is in the wheel: where queenright is installed, it is there, of the same version, and the
tests run it. Where there is no GPU all of it runs on the CPU, and the report says what was skipped and why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos import gpu, pod_report
from chaos.pod_report import Part, Watched

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import IO

    from chaos.gpu import Held

PART_LIMIT: Final = 6 * 3600.0  # budget: a soak of a thousand rounds with a large model takes four hours
END_LIMIT: Final = (
    120.0  # budget: a part that was interrupted heals what it broke, stops its engine and writes its report
)
GIVEN_BACK_LIMIT: Final = 30.0  # budget: a driver frees a dead process's memory within seconds
LOOK_EVERY: Final = 2.0  # budget: between two looks at NVML, each of them a process
POLL: Final = 0.5


class PodCommand:
    """The command."""

    help = "sweep, quants, soak and agents on this machine, with a report, packed"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add = parser.add_argument
        add(
            "--config",
            type=Path,
            metavar="FILE",
            help="the engine to run: roles chat and embed, and a slot for the soak",
        )
        add(
            "--out",
            type=Path,
            default=Path("pod-report"),
            metavar="DIR",
            help="where the report goes (default: ./pod-report)",
        )
        add("--skip", default="", metavar="PART,...", help=f"leave these out, of {', '.join(PARTS)}")
        add("--rounds", type=int, default=100, metavar="N", help="of the soak (default: 100)")
        add("--streams", default="", metavar="N,...", help="of the sweep (default: its own)")
        add("--pairs", type=int, default=0, metavar="N", help="rounds of sweep and quants (default: their own)")
        add("--quants", nargs=2, type=Path, default=(), metavar=("A", "B"), help="two files of a model to compare")
        add("--count", type=int, default=4, metavar="N", help="agents (default: 4)")
        add("--opencode", action="store_true", help="real coding agents (opencode) and no scripted ones")
        parser.epilog = (
            "example:\n  python -m chaos.pod --config pod.toml --quants a.Q4_K_M.gguf a.Q8_0.gguf --out pod\n\n"
            "Leaves DIR/report.md, DIR/report.json, what each part said, and all of it in DIR.tar.gz.\n"
            "Exit status 0 if everything that was judged held. Ctrl-C ends the part that runs, and still writes the report."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Raises UsageError."""
        from chaos.interrupting import interruptible
        from supervisor.errors import UsageError

        skipped = [name.strip() for name in args.skip.split(",") if name.strip()]
        if unknown := set(skipped) - set(PARTS):
            raise UsageError(f"there is no part {', '.join(sorted(unknown))}", f"parts: {', '.join(PARTS)}")
        out = args.out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        before, found = gpu.look(), list[Part]()
        print(f"GPU: {', '.join(before.names) or before.why}", flush=True)
        with interruptible():
            facts = pod_report.machine(before)
            try:
                for name in PARTS:
                    part = (
                        Part(name, "skipped", "left out by --skip")
                        if name in skipped
                        else self._part(name, args, out, before)
                    )
                    found.append(part)
                    print(f"{name}: {part.verdict}{f': {part.why}' if part.why else ''}", flush=True)
            except KeyboardInterrupt:
                rest = PARTS[len(found) :]
                found += [Part(name, "unknown", "the run was interrupted") for name in rest]
        data = pod_report.as_data(facts, found, command=["python", "-m", "chaos.pod", *sys.argv[1:]])
        packed = pod_report.write(out, data)
        print(f"\n{pod_report.text(data)}\npacked: {packed}")
        return 0 if data["verdict"] == "holds" else 1

    def _part(self, name: str, args: argparse.Namespace, out: Path, before: Held) -> Part:
        words, why = words_of(name, args, out)
        if words is None:
            return Part(name, "skipped", why)
        print(f"{name}: {' '.join(words)}", flush=True)
        with Looks(before, out / f"{name}.gpu.jsonl") as looks:
            status, said, seconds = _run(words, out / name)
        after = given_back(before)
        return pod_report.judged(name, status, said, seconds, Watched(before, looks.used, after))


PARTS: Final = ("sweep", "quants", "soak", "agents")


def words_of(name: str, args: argparse.Namespace, out: Path) -> tuple[list[str] | None, str]:
    """The command of a part after `queenright`; or None, and why it is skipped."""
    config = ["--config", str(args.config.resolve())] if args.config else []
    pairs = ["--pairs", str(args.pairs)] if args.pairs else []
    if name == "sweep":
        return ["bench", "sweep", "--json", *config, *pairs, *(["--streams", args.streams] if args.streams else [])], ""
    if name == "quants":
        if not args.quants:
            return None, "no two files were named (--quants A B)"
        return ["bench", "quants", *(str(file.resolve()) for file in args.quants), "--json", *config, *pairs], ""
    if name == "soak":
        return ["soak", "--json", "--rounds", str(args.rounds), "--out", str(out / "soak"), *config], ""
    opencode = ["--opencode"] if args.opencode else []
    return ["agents", "--json", "--count", str(args.count), "--out", str(out / "agents"), *config, *opencode], ""


def _run(words: Sequence[str], place: Path) -> tuple[int, str, float]:
    """Run a part to its end: exit status, what it said on stdout, and seconds. Interrupted, it is given the time to heal what it
    broke. Its stderr is shown, and kept."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "supervisor.cli", *words]
    with (
        Path(f"{place}.stdout").open("wb") as output,
        Path(f"{place}.stderr").open("wb") as kept,
        # A session of its own: Ctrl-C is ours, and reaches it once.
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, start_new_session=True
        ) as child,
    ):
        assert child.stderr is not None  # noqa: S101 - it is a pipe
        reader = threading.Thread(target=_echo, args=(child.stderr, kept), daemon=True)
        reader.start()
        try:
            status = child.wait(PART_LIMIT)
        except subprocess.TimeoutExpired:
            status = _end(child)
        except KeyboardInterrupt:
            _end(child)
            raise
        finally:
            reader.join(END_LIMIT)
    return status, Path(f"{place}.stdout").read_text(encoding="utf-8", errors="replace"), time.monotonic() - began


def _end(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        return child.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _echo(source: IO[bytes], kept: IO[bytes]) -> None:
    for line in source:
        kept.write(line)
        sys.stderr.write(line.decode("utf-8", "replace"))
        sys.stderr.flush()


class Looks:
    """NVML's word every other second while a part runs, also as lines of JSON. Where there is no GPU nobody looks."""

    def __init__(self, before: Held, path: Path) -> None:
        self.used: list[int | None] = []
        self._path, self._stop = path, threading.Event()
        self._thread = None if before.is_absent else threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Looks:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._path.open("w", encoding="utf-8") as lines:
            while not self._stop.is_set():
                held = gpu.look()
                self.used.append(held.total)
                lines.write(json.dumps({"at": time.time(), "used": held.used, "why": held.why}) + "\n")
                lines.flush()
                self._stop.wait(LOOK_EVERY)


def given_back(before: Held) -> Held:
    """What is held once the driver had the time to free it."""
    after = gpu.look()
    deadline = time.monotonic() + GIVEN_BACK_LIMIT
    while not pod_report.is_as_before(before, after) and time.monotonic() < deadline:
        time.sleep(POLL)
        after = gpu.look()
    return after


COMMAND: Final = PodCommand()


def main(argv: list[str] | None = None) -> int:
    """`python -m chaos.pod`. Returns the exit status."""
    from supervisor import cli

    return cli.main(["pod", *(sys.argv[1:] if argv is None else argv)], known={"pod": COMMAND})


if __name__ == "__main__":
    sys.exit(main())
