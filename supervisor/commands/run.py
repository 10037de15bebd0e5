"""`queenright run`: the engine in the foreground. This process becomes the warden."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_place, patience, slot_for

if TYPE_CHECKING:
    import argparse
    from typing import NoReturn

    from supervisor.contract import EngineSpec
    from supervisor.slot import Slot
    from supervisor.standby import Standby


class Run:
    """The command."""

    help = "keep the engine up in the foreground, until Ctrl-C (for tmux and systemd)"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.epilog = (
            "example:\n  queenright run --config ~/engines/queenright.toml\n\n"
            "The first Ctrl-C stops it in order, a second one at once. Exit status 3 when the slot has an engine already,\n"
            "unless members built it and this one serves all that it does: then it is stopped, and they go on with this one;\n"
            "6 when it does not fit into this machine's memory (`queenright plan` shows why)."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Check everything, then become the warden. Meanwhile its keeper imports what it needs."""
        from supervisor import standby

        fill_standard_streams()
        keeper = standby.begin()
        try:
            from supervisor import resolving
            from supervisor.contract import Lifetime

            with patience("binaries and models to be looked at"):
                config = resolving.load(args.config)
                spec = resolving.resolve(config, Lifetime.RUN)
            slot = slot_for(args, config)
            slot.prepare()
            become_warden(slot, spec, keeper)
        except BaseException:
            if keeper is not None:
                keeper.end()
            raise


COMMAND: Final = Run()


def fill_standard_streams() -> None:
    """Where whoever started us closed one of them, /dev/null takes its place: else a lock or a link would be given that
    number, and get what the warden and its keeper say to people."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def become_warden(slot: Slot, spec: EngineSpec, keeper: Standby | None) -> NoReturn:
    """Take the empty slot and exec the warden, which lets go of build.lock once its control socket accepts. `keeper` is
    the one that waits for it, if one does.

    Raises OwnedElsewhereError when the slot is not empty, HeldError when somebody holds it, DoesNotFitError where there is
    no room for it, and as `vacant.take`.
    """
    from supervisor import acquire, service, vacant, wardens
    from supervisor.environment import clean

    given = service.given(os.environ, os.getpid())

    def say(text: str) -> None:
        print(f"queenright: {text}", file=sys.stderr, flush=True)

    with patience(f"{slot.path}, and for memory to be looked at"):
        hold = vacant.take(slot, spec, program="queenright run", say=say)
        try:
            _refuse_what_does_not_fit(spec)
        except BaseException:
            hold.release()
            raise
    # From here on the warden hears of them, once it can: in its first 50 ms a signal would end it with a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    acquire.write_contract(slot, spec)
    names = ", ".join(f"{group.name} ({', '.join(launch.role for launch in group.launches)})" for group in spec.groups)
    say(f"keeping {names} in {slot.path}; Ctrl-C stops it")
    release_fd = hold.duplicate_inheritable()
    argv = wardens.command(slot, console=True, release_fd=release_fd, service=given, waiting=keeper)
    os.execve(argv[0], argv, clean(os.environ))


def _refuse_what_does_not_fit(spec: EngineSpec) -> None:
    """Raises DoesNotFitError. The machine is looked at only where there is a plan to make: the look costs a Python that
    asks NVML, and what it takes to import, 0.1 s of CPU time (measured)."""
    from supervisor import kinds

    if any(group.is_planned and isinstance(kinds.find(group.kind), kinds.Planning) for group in spec.groups):
        from supervisor import fitting

        fitting.refuse_what_does_not_fit(spec, kinds.find)
