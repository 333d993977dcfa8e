"""What an index delivers does its main job on its own, without the source beside it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from distributions import ROOT, wheel

pytestmark = pytest.mark.processor


@pytest.mark.slow  # .ci/run does the same
def test_the_wheel_alone_compiles_runs_and_verifies(tmp_path: Path) -> None:
    site, job = tmp_path / "site", tmp_path / "job"
    job.mkdir()
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        archive.extractall(site)
    assert list(site.glob("ptqc-*.dist-info/licenses/LICENSE"))
    # Threads that wait for a busy core take most of the time.
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "wheel_job.py"), str(job)],
        cwd=job,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["of_limit"] <= 1
