"""Files of a job folder: what a compile and the process that runs TVM hand to each other."""

PROCESS = "ptqc.codegen.kernels.process"
LOWERED, JOB, VALUES, REPORT, ERROR = "lowered.onnx", "job.json", "values-{:03}.npz", "report.json", "error.json"
