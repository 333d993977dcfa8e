"""NNCF on ONNX files, in 8 bits: its defaults, which include a correction of biases."""

import nncf
import onnx
import recipe


def int8(job: recipe.Job) -> None:
    data = nncf.Dataset(job.samples)
    onnx.save(nncf.quantize(onnx.load(job.model), data, subset_size=len(job.samples)), job.target)


if __name__ == "__main__":
    recipe.main("nncf", {"int8": int8})
