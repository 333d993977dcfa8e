"""Files of a job folder: what the compile and the process that runs TVM hand to each other."""

PROCESS, WORKER = "ptqc.codegen.cpu.process", "ptqc.codegen.cpu.worker"
TIMING_WORKER = "ptqc.codegen.cpu.timing_worker"
LOWERED, JOB, VALUES, REPORT, ERROR = "lowered.onnx", "job.json", "values-{:03}.npz", "report.json", "error.json"
