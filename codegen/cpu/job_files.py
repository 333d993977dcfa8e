"""The programs that do the jobs of the target cpu."""

WORKER, TIMING_WORKER = "ptqc.codegen.cpu.worker", "ptqc.codegen.cpu.timing_worker"
