"""The programs that do the jobs of the target cuda, and its name."""

TARGET = "cuda"
WORKER, TIMING_WORKER = "ptqc.codegen.cuda.worker", "ptqc.codegen.cuda.timing_worker"
TUNING_WORKER, TRIAL_WORKER = "ptqc.codegen.cuda.tuning_worker", "ptqc.codegen.cuda.trial_worker"
