"""`queenright apply`: make the running engine what the configuration says now."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_drain, add_place, need_engine, slot_for, watch

if TYPE_CHECKING:
    import argparse

    from supervisor.contract import EngineSpec
    from supervisor.slot import Slot


class Apply:
    """The command."""

    help = "make the running engine what the configuration says now; restarts only what changed"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        add_drain(parser)
        parser.add_argument("--dry-run", action="store_true", help="only say what would be restarted")
        parser.add_argument("--json", action="store_true", help="the changes as data")
        parser.epilog = (
            "example:\n  queenright apply --dry-run\n\n"
            "Groups that stay as they are go on serving. Requests to the others are held until they are up; what is being\n"
            "streamed from them is cut and said to be, unless it ends within --drain. Exit status 4 when no engine runs."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Compare, tell the keeper, and wait. Raises whatever a configuration can have, NoEngineError or ControlError."""
        from supervisor import budgets, control, locks, records, resolving
        from supervisor.contract import EngineSpec

        config = resolving.load(args.config)
        wanted = resolving.resolve(config)
        slot = slot_for(args, config)
        need_engine(slot, "`queenright run`, or any front end, starts one")
        with locks.acquire(slot.build_lock, timeout=budgets.BUILD_LOCK_WAIT):  # the ladder decides under it, too
            serving = records.structure(control.ask(slot, "status", brief=True)["contract"], EngineSpec)
            differences = changes(serving, wanted)
            if differences and not args.dry_run:
                who = f"queenright apply (pid {os.getpid()})"
                control.ask(slot, "configure", contract=records.unstructure(wanted), who=who, drain_s=args.drain)
        if not args.json:
            print("\n".join(f"{name}: {what}" for name, what in differences.items()) or "nothing changed", flush=True)
        state = "unchanged"
        if differences and not args.dry_run:
            state = watch(slot, [group.name for group in wanted.groups])["state"]
            if GATEWAY in differences and wanted.gateway.enabled:
                _wait_for_gateway(slot)
        if args.json:
            import json

            print(json.dumps({"changes": differences, "applied": not args.dry_run, "state": state}))
        elif state != "unchanged":
            print(f"engine {state}")
        return 5 if state == "failed" else 0


COMMAND: Final = Apply()

GATEWAY: Final = "[gateway]"
"""What it is called among the groups, none of which can be called so."""


def changes(serving: EngineSpec, wanted: EngineSpec) -> dict[str, str]:
    """What becomes of each group that is not left alone, and of the gateway, in plain words."""
    before = {group.name: group for group in serving.groups}
    after = {group.name: group for group in wanted.groups}
    found = {name: "is started" for name in after.keys() - before.keys()}
    found |= {name: "is stopped: the configuration has it no more" for name in before.keys() - after.keys()}
    found |= {name: "is restarted" for name in after.keys() & before.keys() if not after[name].runs_as(before[name])}
    found = dict(sorted(found.items()))
    if wanted.gateway != serving.gateway:
        found[GATEWAY] = "is changed" if wanted.gateway.enabled else "is switched off"
    return found


def _wait_for_gateway(slot: Slot) -> None:
    """Until it serves as it is configured now. Raises GatewayError where it does not."""
    from supervisor import budgets, control
    from supervisor.errors import GatewayError

    why = "its keeper does not say what it does"
    with suppress(control.ControlError):  # it takes too long
        for snapshot in control.converse(slot, "follow", limit=budgets.GATEWAY_START):
            found = snapshot["gateway"]
            if found["state"] == "serving":
                return
            why = found["reason"] or found["state"]
            if found["state"] == "failed":
                break
    raise GatewayError(
        f"the groups are as configured, and the gateway is not: {why}",
        "`queenright status` shows it; it is tried again by itself",
    )
