"""Whether files are still those that were read: a large model stays in its files while it is compiled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ptqc.errors import Interrupted

# Inode, time of the last change in nanoseconds, bytes; None where there is no file.
State = tuple[int, int, int] | None


@dataclass(frozen=True)
class FileStates:
    """What files were like when they were looked at."""

    states: Mapping[Path, State] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[Path]) -> "FileStates":
        """What they are like now."""
        return cls({file.absolute(): _state(file) for file in files})

    def __or__(self, others: "FileStates") -> "FileStates":
        return FileStates({**self.states, **others.states})

    def check(self) -> None:
        """Raises Interrupted where one was written to, replaced or removed since."""
        for file, state in self.states.items():
            if _state(file) != state:
                raise Interrupted(
                    f"{file} was changed while the model was compiled, and nothing of what was made since is kept; "
                    "a model of this size stays in its files: leave them as they are, and compile again"
                )


def _state(file: Path) -> State:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


NOTHING = FileStates()
