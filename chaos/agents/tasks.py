"""What an agent is given to do, and whether it was done: a project of notes with codes in them, and the answers on disk.

The codes are drawn for each project, so an answer can only come out of the project it belongs to: one that stands in
another one's answers is told. Nothing of what an agent says of itself counts, only the files that it leaves.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Collection
    from pathlib import Path

HIVES: Final = ("linden", "clover", "heather", "thyme", "willow", "sage", "amber", "orchard")
NOTES: Final = "notes"
QUESTIONS: Final = "QUESTIONS.txt"
ANSWER: Final = "ANSWER.md"
STEPS: Final = "STEPS.json"
"""What the model said at each step of a scripted agent."""
CODE: Final = re.compile(r"\b[A-Z]{2}\d{4}\b")
LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ"
ASKED: Final = 3

TASK: Final = f"""\
In {NOTES}/ there is one note for each hive of this project. Each has the code of its hive in it.
{QUESTIONS} names hives, one a line. Read the notes of those hives, and write the file {ANSWER}: one line for each of
them, in that order, as `HIVE: CODE`, and nothing else.
"""


class Project(NamedTuple):
    """A project on disk, and what is right."""

    root: Path
    codes: dict[str, str]
    """Of all its hives."""
    asked: tuple[str, ...]

    @property
    def answer(self) -> str:
        """What ANSWER.md must say."""
        return "".join(f"{hive}: {self.codes[hive]}\n" for hive in self.asked)


def title(hive: str) -> str:
    """What a note is found by."""
    return f"The {hive} hive"


def make(root: Path, chance: random.Random, taken: set[str]) -> Project:
    """Write a project into an empty directory. No code in `taken` is drawn, and those that are drawn are added."""
    codes: dict[str, str] = {}
    for hive in HIVES:
        while (code := "".join(chance.choices(LETTERS, k=2)) + f"{chance.randrange(10_000):04}") in taken:
            continue
        taken.add(code)
        codes[hive] = code
    asked = tuple(chance.sample(HIVES, ASKED))
    (root / NOTES).mkdir(parents=True)
    for hive, code in codes.items():
        text = f"{title(hive)}\n\nIts bees fly to the {chance.choice(HIVES)} in spring. Its code is {code}.\n"
        (root / NOTES / f"{hive}.md").write_text(text, encoding="utf-8")
    (root / QUESTIONS).write_text("".join(f"{hive}\n" for hive in asked), encoding="utf-8")
    (root / "TASK.md").write_text(TASK, encoding="utf-8")
    return Project(root, codes, asked)


def wrong(project: Project, foreign: Collection[str], *, steps: int = 0) -> list[str]:
    """What is not as it must be; nothing where the task was done. `foreign` are the codes of other projects; `steps`: how
    many answers of the model there must be (0: the agent keeps no list)."""
    found = []
    try:
        said = (project.root / ANSWER).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"{ANSWER} cannot be read: {error}"]
    # A model may write a list mark or a blank line more; codes, hives and their order must be right.
    lines = [line.strip(" -*`").lower() for line in said.splitlines() if line.strip()]
    if lines != project.answer.lower().splitlines():
        found.append(f"{ANSWER} says {said!r}, and not {project.answer!r}")
    if strange := sorted(set(CODE.findall(said)) & set(foreign)):
        found.append(f"{ANSWER} has codes of another project: {', '.join(strange)}")
    for hive, code in project.codes.items():
        note = project.root / NOTES / f"{hive}.md"
        if not note.is_file() or code not in note.read_text(encoding="utf-8"):
            found.append(f"{note.name} is not as it was")
    return found + (_steps_wrong(project, steps) if steps else [])


def _steps_wrong(project: Project, steps: int) -> list[str]:
    try:
        said = json.loads((project.root / STEPS).read_text(encoding="utf-8"))
        empty = [number for number, one in enumerate(said) if not one["text"] and not one["calls"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{STEPS} cannot be read: {type(error).__name__}: {error}"]
    if len(said) < steps:
        return [f"the model answered {len(said)} times, and {steps} are the least for this task"]
    return [f"the model said nothing in step {empty[0] + 1}"] if empty else []
