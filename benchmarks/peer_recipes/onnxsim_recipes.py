"""onnxsim as a simplifier only: the size of a float file with nothing superfluous in it."""

import onnx
import onnxsim
import recipe


def simplify(job: recipe.Job) -> None:
    simplified, equal = onnxsim.simplify(onnx.load(job.model))
    if not equal:
        raise ValueError("the simplified model gives other outputs")
    onnx.save(simplified, job.target)


if __name__ == "__main__":
    recipe.main("onnxsim", {"float": simplify})
