"""Progress of another process, which adds a line to a file for each step that it has done."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptqc.utils.progress import Stage

PERIOD = 0.5


def tell(path: Path, label: str) -> None:
    """A step is done; label names it, on one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{label}\n")


@contextmanager
def following(path: Path, stage: Stage) -> Iterator[None]:
    """Let a stage advance by each line that a file gets meanwhile; it need not be there yet."""
    ended, told = threading.Event(), 0

    def look() -> None:
        nonlocal told
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
        for label in lines[told:]:
            stage.advance(label)
        told = len(lines)

    def follow() -> None:
        while not ended.wait(PERIOD):
            look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
