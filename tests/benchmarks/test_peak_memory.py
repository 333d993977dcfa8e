"""The peak of a command is that of all its processes, and no mapped file is in it."""

import sys
from pathlib import Path

import peak_memory
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FILE = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
total = sum(mapped[place] for place in range(0, len(mapped), 4096))
time.sleep(0.3)
"""


def test_processes_add_up() -> None:
    code = "import subprocess, sys, time\nheld = bytearray(b'1') * (60 << 20)\n"
    child = code + "time.sleep(0.6)"
    command = [sys.executable, "-c", code + f"subprocess.run([sys.executable, '-c', {child!r}])"]
    result = peak_memory.measure(command, every=0.02)
    assert result.code == 0
    assert result.processes == 2
    assert 120 < result.peak_mb < 180


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(80 << 20))
    result = peak_memory.measure([sys.executable, "-c", FILE, str(tmp_path / "data")], every=0.02)
    assert result.code == 0
    assert 1 < result.peak_mb < 40


def test_what_takes_too_long_is_stopped() -> None:
    result = peak_memory.measure([sys.executable, "-c", "import time; time.sleep(60)"], every=0.02, limit=0.3)
    assert result.code == peak_memory.TIMED_OUT
    assert result.seconds < 5


def test_seconds_of_a_processor_are_those_of_all_processes() -> None:
    """Also of those that ended; waiting is none."""
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    code = f"import subprocess, sys, time\nfor _ in range(2): subprocess.run([sys.executable, '-c', {busy!r}])\n"
    result = peak_memory.measure([sys.executable, "-c", code + "time.sleep(0.3)"], every=0.02)
    assert 0.5 < result.processor < 1.2
    assert result.processor < result.seconds


def test_each_line_of_progress_has_the_peak_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys, time\nprint('begun', file=sys.stderr, flush=True)\nheld = bytearray(b'1') * (60 << 20)\n"
    code += "time.sleep(0.5)\ndel held\nprint('held', file=sys.stderr, flush=True)\ntime.sleep(0.3)\n"
    code += "print('done', file=sys.stderr, flush=True)\n"
    result = peak_memory.measure([sys.executable, "-c", code], every=0.02, phases=True)
    assert [line for line, *_ in result.phases] == ["begun", "held", "done"]
    assert result.phases[1][3] > 60 > result.phases[2][3]
    assert 0 < result.phases[0][1] < result.phases[1][1] < result.phases[2][1]
    assert "MiB  held" in capsys.readouterr().err


def test_a_table_has_a_row_for_each_stage_that_ended() -> None:
    phases = [
        ("read: 3.0 s", 4.0, 2.0, 100.0),
        ("solve: 1 of 2 done, 30 s so far", 34.0, 20.0, 500.0),
        ("solve: 60.0 s, 2 steps", 64.0, 40.0, 300.0),
        ("size        5 bytes", 66.0, 41.0, 50.0),
    ]
    rows = peak_memory.stages(peak_memory.Peak(500.0, seconds=70.0, processor=43.0, phases=phases))
    assert [(row["stage"], row["seconds"], row["processor"], row.get("peak_mb")) for row in rows] == [
        ("read", 4.0, 2.0, 100.0),
        ("solve", 60.0, 38.0, 500.0),
        ("the rest", 6.0, 3.0, None),
        ("whole", 70.0, 43.0, 500.0),
    ]
