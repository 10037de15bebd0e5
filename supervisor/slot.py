"""The directory of a slot: its paths, and whether it can be trusted with locks (docs/concepts.md, "A slot on disk").

Over 300 lines: half of them are the list of what is in it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from supervisor import identity
from supervisor.errors import SlotError, system_words

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""What a group may be called: a part of the names of its files, its environment and its metrics."""
SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path: sun_path has 108, and one is its end (unix(7))."""

SHARED_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse", "fuseblk"}
    | {"afs", "beegfs", "ceph", "coda", "gfs2", "lustre", "ocfs2", "vboxsf"}
)
"""Types (as in /proc/self/mountinfo) on which flock is a no-op, local to one host, or another program's idea of it; and
those that several machines share, where a pid would name another machine's process."""

START_LOG_END = ".start.log"
"""How the name of a generation's start-up log ends."""

LOCAL_STEP = "put the slot on a local disk: set QUEENRIGHT_SLOT to a directory there"


class Slot(NamedTuple):
    """A slot and the path of everything in it. Nothing is looked at before `prepare` or `examine`."""

    path: Path

    @property
    def build_lock(self) -> Path:
        """The ladder runs under it; so do joins and the step into `stopping`."""
        return self.path / "build.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper for its life."""
        return self.path / "keeper.lock"

    @property
    def warden_lock(self) -> Path:
        """Held by the warden for its life."""
        return self.path / "warden.lock"

    @property
    def keeper_record(self) -> Path:
        """Who the keeper is, for readers; nothing is decided by it."""
        return self.path / "keeper.json"

    @property
    def warden_record(self) -> Path:
        """How the last keeper ended and when the next one comes: the warden's word for readers, not one of `records`."""
        return self.path / "warden.json"

    @property
    def contract_record(self) -> Path:
        """What is to run: the builder's word to the first keeper. Later keepers have it from the warden."""
        return self.path / "contract.json"

    @property
    def hold_record(self) -> Path:
        """While it is there, nothing is started in the slot: `holding`."""
        return self.path / "hold.json"

    def hold_record_of(self, group: str) -> Path:
        """The same for one group; `hold_record` for none."""
        return self.path / f"hold.{_plain(group)}.json" if group else self.hold_record

    def held_groups(self) -> list[str]:
        """Groups that have a `hold_record_of` their own."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return []
        parts = (name.split(".") for name in sorted(names))
        return [part[1] for part in parts if len(part) == 3 and (part[0], part[2]) == ("hold", "json")]

    @property
    def control_socket(self) -> Path:
        """May be too long for connect(2): go through `connectable`."""
        return self.path / "control.sock"

    @property
    def members(self) -> Path:
        """Folder of one locked file for each process that uses the engine (`membership`)."""
        return self.path / "members"

    @property
    def joining(self) -> Path:
        """Folder where a member's file is made and locked before it shows in `members`."""
        return self.path / "joining"

    @property
    def groups(self) -> Path:
        """Folder of everything that is of one group or generation."""
        return self.path / "groups"

    @property
    def logs(self) -> Path:
        """Folder of the logs: keeper, warden, and one for each group over all its generations."""
        return self.path / "logs"

    @property
    def keeper_log(self) -> Path:
        """What keepers print, their last words included."""
        return self.logs / "keeper.log"

    @property
    def warden_log(self) -> Path:
        """What a detached warden prints; that of `queenright run` prints to the terminal."""
        return self.logs / "warden.log"

    @property
    def events(self) -> Path:
        """What happened, with reasons: one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def tickets(self) -> Path:
        """What was found out about configurations by those who came, for the next ones with the same (`ticket`)."""
        return self.path / "tickets.json"

    def group_record(self, group: str) -> Path:
        """For those who bind. Raises ValueError for a name that is no group's, here and below."""
        return self.groups / f"{_plain(group)}.json"

    def group_key(self, group: str) -> Path:
        """The key that clients send to this group, mode 0600. It stays the same over generations."""
        return self.groups / f"{_plain(group)}.key"

    def group_port(self, group: str) -> Path:
        """The port where the group's proxy was last. It stays the same over engines, where it can."""
        return self.groups / f"{_plain(group)}.port"

    def group_log(self, group: str) -> Path:
        """What the group's proxy and servers print."""
        return self.logs / f"{_plain(group)}.log"

    def start_log(self, group: str, generation: str) -> Path:
        """The first lines of that generation: they outlive the cap on the group's log."""
        return self.logs / f"{_plain(group)}.{_plain(generation)}{START_LOG_END}"

    def generation_lock(self, group: str, generation: str) -> Path:
        """Held while any process of that generation lives."""
        return self.groups / f"{_plain(group)}.{_plain(generation)}.lock"

    def generation_config(self, group: str, generation: str) -> Path:
        """What the group's proxy reads at its start. A kind may put more files beside it, of the same name but the end."""
        return self.groups / f"{_plain(group)}.{_plain(generation)}.json"

    def generation_undo(self, group: str, generation: str) -> Path:
        """The command that ends what the generation started outside its own processes. There until that is done."""
        return self.groups / f"{_plain(group)}.{_plain(generation)}.undo"

    def generations(self) -> list[tuple[str, str]]:
        """(group, generation) of every generation lock there is, held or not; empty without a slot.

        Raises SlotError when the directory cannot be read: then nothing is known.
        """
        return self._of_generations("lock")

    def undone(self) -> list[tuple[str, str]]:
        """(group, generation) of every `generation_undo` there is; else as `generations`."""
        return self._of_generations("undo")

    def clear_generation(self, group: str, generation: str) -> None:
        """Remove the files of a generation that is gone: there are keys in them. Its lock is the warden's to remove, and what
        is to be undone outside is there until it was."""
        with suppress(OSError):
            for name in os.listdir(self.groups):  # glob takes 0.4 ms, and a restart waits for it
                if name.startswith(f"{_plain(group)}.{_plain(generation)}.") and not name.endswith((".lock", ".undo")):
                    (self.groups / name).unlink(missing_ok=True)

    def left_outside(self, known: Container[str] = ()) -> list[dict[str, str]]:
        """`undone` as plain data, for those who look, without the generations of the present engine, which are `known`.
        Empty where the directory cannot be read."""
        try:
            undone = self.undone()
        except SlotError:
            return []
        return [
            {"group": group, "generation": generation, "file": str(self.generation_undo(group, generation))}
            for group, generation in undone
            if generation not in known
        ]

    def _of_generations(self, end: str) -> list[tuple[str, str]]:
        try:
            names = os.listdir(self.groups)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed("cannot be read", self.groups, error) from error
        parts = (name.split(".") for name in sorted(names))
        return [(part[0], part[1]) for part in parts if len(part) == 3 and part[2] == end]

    def private(self, root: str) -> Slot:
        """The slot beside this one for the configuration in the directory `root`: where its engine lives when the one
        here is another's (docs/concepts.md, "The ladder"). However the directory is named, it is the same."""
        import hashlib

        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        return Slot(self._beside / name)

    def private_slots(self) -> list[Slot]:
        """The private slots that were made beside this one, in use or not. One that cannot be listed counts as none:
        they are looked for to be shown."""
        try:
            names = sorted(os.listdir(self._beside))
        except OSError:
            return []
        return [Slot(self._beside / name) for name in names if re.fullmatch("[0-9a-f]{16}", name)]

    @property
    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}-private")

    def prepare(self) -> None:
        """Make the slot if it is not there, and raise SlotError unless it can be used.

        Directories are 0700; ours that are open wider are tightened. Refused: a symlink, another user's directory, a
        read-only one, a filesystem of SHARED_FILESYSTEMS, and one where flock fails.
        """
        if not self.path.is_absolute():
            raise SlotError(f"{self.path}: the slot must be an absolute path", "write it out from the root")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed("cannot be made", self.path.parent, error) from error
        for folder in self._folders():
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                raise _failed("cannot be made", folder, error) from error
            _check_folder(folder, tighten=True)
            if folder == self.path:
                # Before anything is made in it.
                _check_filesystem(folder)

    def examine(self) -> bool:
        """The checks of `prepare` for those who only look: nothing is made or changed.

        False when there is no slot yet; raises SlotError when there is one that must not be used. A directory that
        others may read is let pass (the next `prepare` tightens it), one that others may write is refused.
        """
        if not os.path.lexists(self.path):
            return False
        for folder in self._folders():
            if os.path.lexists(folder):
                _check_folder(folder, tighten=False)
        _check_filesystem(self.path)
        return True

    def _folders(self) -> tuple[Path, ...]:
        return (self.path, self.members, self.joining, self.groups, self.logs)


def _plain(name: str) -> str:
    """A name that is one part of a file's name: letters, digits, `-` and `_`. Dots separate our parts."""
    if not (name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()):
        raise ValueError(f"not a name of a group or generation: {name!r}")
    return name


def _check_folder(folder: Path, *, tighten: bool) -> None:
    """Raise SlotError unless this is a directory of ours that only we can use."""
    try:
        facts = os.lstat(folder)
    except OSError as error:
        raise _failed("cannot be looked at", folder, error) from error
    if stat.S_ISLNK(facts.st_mode):
        raise SlotError(f"{folder} is a symbolic link", "name the directory itself; links are not followed here")
    if not stat.S_ISDIR(facts.st_mode):
        raise SlotError(f"{folder} is not a directory", "move it away, or choose another slot with QUEENRIGHT_SLOT")
    if facts.st_uid != os.geteuid():
        raise SlotError(
            f"{folder} belongs to user id {facts.st_uid}, and we are {os.geteuid()}",
            "every user has a slot of his own: choose another directory with QUEENRIGHT_SLOT",
        )
    if tighten and facts.st_mode & 0o077:
        try:
            os.chmod(folder, 0o700)
        except OSError as error:
            raise _failed("is open to others and cannot be closed", folder, error) from error
    elif facts.st_mode & 0o022:
        raise SlotError(f"{folder} can be written by others", f"close it: chmod 700 {folder}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise SlotError(f"{folder} cannot be written by us", "make it writable, or choose another with QUEENRIGHT_SLOT")


def _check_filesystem(folder: Path) -> None:
    """Raise SlotError where locks do not mean what they must: by the type's name first, then by trying."""
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        kind = filesystem_of(descriptor)
        if is_shared(kind):
            raise SlotError(f"{folder} is on a {kind} filesystem, where file locks cannot be relied on", LOCAL_STEP)
        # On the directory itself: so nobody's lock is disturbed, and a look needs no file.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        pass  # somebody else's lock is a lock that works
    except OSError as error:
        raise _failed("does not take file locks", folder, error, LOCAL_STEP) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def is_shared(kind: str | None) -> bool:
    """Whether that type of filesystem is of SHARED_FILESYSTEMS; one that could not be told is not known to be."""
    # fuse.sshfs and the like: the part before the dot is the filesystem, the rest is who serves it.
    return kind is not None and kind.partition(".")[0] in SHARED_FILESYSTEMS


def filesystem_of(descriptor: int) -> str | None:
    """Type of the filesystem an open file is on, as in proc_pid_mountinfo(5); None when that cannot be told.

    By the mount's id, not by comparing paths or devices: a path may be mounted over, and btrfs shows other devices.
    """
    try:
        with open(f"{identity.PROC}/self/fdinfo/{descriptor}", encoding="ascii") as file:
            mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), None)
        with open(f"{identity.PROC}/self/mountinfo", "rb") as table:
            for line in table:
                if line.split(b" ", 1)[0].decode("ascii") == mount:
                    return line.partition(b" - ")[2].split()[0].decode("ascii", "replace")
    except (OSError, ValueError, IndexError):
        pass
    return None


def _failed(what: str, path: Path, error: OSError, next_step: str = "") -> SlotError:
    return SlotError(
        f"{path} {what}: {system_words(error)}",
        next_step or "choose another directory with QUEENRIGHT_SLOT, or repair this one",
    )


@contextmanager
def connectable(path: Path) -> Iterator[str]:
    """The path of a Unix socket as bind(2) and connect(2) take it, however long it is. Raises OSError.

    Beyond 107 bytes the directory is opened and named by its descriptor; the name holds inside the `with` only.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
