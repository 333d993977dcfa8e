"""The program that does the jobs of the target cuda, and its name."""

TARGET, WORKER = "cuda", "ptqc.codegen.cuda.worker"
