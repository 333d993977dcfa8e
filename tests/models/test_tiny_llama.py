"""The small decoder: planted outliers change no output, and a cache continues a sequence."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tiny_llama


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("cache", [True, False])
def test_outliers_change_weights_and_no_output(cache: bool) -> None:
    plain, planted = (tiny_llama.build(outliers, cache) for outliers in (False, True))
    onnx.checker.check_model(planted, full_check=True)
    assert [node.op_type for node in plain.graph.node] == [node.op_type for node in planted.graph.node]
    feeds = tiny_llama.sample(9, past=4, cache=cache)
    before, after = run(plain, feeds), run(planted, feeds)
    for name, array in before.items():
        assert np.abs(after[name] - array).max() <= 1e-5 * np.abs(array).max()
    changed = [one != other for one, other in zip(plain.graph.initializer, planted.graph.initializer, strict=True)]
    assert sum(changed) == 5 + 2 * (6 if cache else 7) + 1  # gains, weights of the layers, the last reader


def test_a_cache_continues_a_sequence() -> None:
    """Seven tokens at once, or four and then three behind what the first four left, give the same."""
    model, feeds = tiny_llama.build(), tiny_llama.sample(7)
    whole = run(model, feeds)
    first = run(model, {**feeds, "tokens": feeds["tokens"][:, :4]})
    past = {name.replace("present", "past"): array for name, array in first.items() if name != "logits"}
    second = run(model, {"tokens": feeds["tokens"][:, 4:], **past})
    logits = np.concatenate([first["logits"], second["logits"]], 1)
    assert np.abs(logits - whole["logits"]).max() <= 1e-5 * np.abs(whole["logits"]).max()


def test_a_cache_of_a_fixed_size_continues_a_sequence() -> None:
    """Token by token, each in its place, as all at once; places that come later are not looked at."""
    feeds = tiny_llama.sample(7)
    whole, fixed = run(tiny_llama.build(), feeds), tiny_llama.build(capacity=9)
    onnx.checker.check_model(fixed, full_check=True)
    assert all(size.dim_value > 0 for value in fixed.graph.input for size in value.type.tensor_type.shape.dim)
    shape = (1, tiny_llama.SHARED, 9, tiny_llama.SIZE)
    past = {name: np.full(shape, 50, np.float32) for name in feeds if name != "tokens"}
    for place in range(7):
        token = feeds["tokens"][:, place : place + 1]
        result = run(fixed, {"tokens": token, "position_ids": np.array([[place]]), **past})
        past = {name.replace("present", "past"): array for name, array in result.items() if name != "logits"}
        wanted = whole["logits"][0, place]
        assert np.abs(result["logits"][0, 0] - wanted).max() <= 1e-5 * np.abs(whole["logits"]).max()
    assert np.abs(past["past_key_0"][:, :, :7] - whole["present_key_0"]).max() <= 1e-5
    assert (past["past_key_0"][:, :, 7:] == 50).all()
