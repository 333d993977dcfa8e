"""The programs that do the jobs of the target cuda, its name, and the file in which tuning tells what is done."""

TARGET = "cuda"
WORKER, TIMING_WORKER = "ptqc.codegen.cuda.worker", "ptqc.codegen.cuda.timing_worker"
TUNING_WORKER, TRIAL_WORKER = "ptqc.codegen.cuda.tuning_worker", "ptqc.codegen.cuda.trial_worker"
DONE = "done.txt"
