"""What inputs are for: by graph, by name, and told apart from what only looks like it."""

import numpy as np
import pytest

from ptqc.calibration.inputs import InputRole, InputSpec, roles


def ints(name: str, rows: int | None = None, masks: bool = False) -> InputSpec:
    return InputSpec(name, np.dtype(np.int64), ("N", "T"), rows, masks)


def floats(name: str, *shape: int | str) -> InputSpec:
    return InputSpec(name, np.dtype(np.float32), shape)


BERT = (ints("input_ids", 1000), ints("attention_mask", masks=True), ints("token_type_ids", 2))


@pytest.mark.parametrize("names", [("input_ids", "attention_mask", "token_type_ids"), ("a", "b", "c")])
def test_an_encoder_is_known_by_its_graph(names: tuple[str, ...]) -> None:
    inputs = [InputSpec(name, *[*vars(spec).values()][1:]) for name, spec in zip(names, BERT, strict=True)]
    assert list(roles(inputs).values()) == [InputRole.TOKENS, InputRole.MASK, InputRole.TYPES]


def test_names_help_where_the_graph_says_nothing() -> None:
    inputs = (ints("ids"), ints("padding_mask"), ints("segments"), ints("position_ids", 512))
    assert [*roles(inputs).values()] == [InputRole.TOKENS, InputRole.MASK, InputRole.TYPES, InputRole.PLACES]


def test_positions_that_are_compared_for_a_mask_are_positions() -> None:
    inputs = (ints("input_ids", 1000), ints("attention_mask", masks=True), ints("position_ids", masks=True))
    assert [*roles(inputs).values()] == [InputRole.TOKENS, InputRole.MASK, InputRole.PLACES]


def test_a_small_table_beside_a_large_one_is_a_kind_of_token_only_where_positions_are_masked() -> None:
    result = roles((ints("item", 1000), ints("colour", 3)))
    assert result == {"item": InputRole.TOKENS, "colour": InputRole.OTHER}


def test_of_two_inputs_alike_none_has_the_tokens() -> None:
    assert set(roles((ints("one", 50), ints("two", 50))).values()) == {InputRole.OTHER}


def test_a_past_grows() -> None:
    result = roles(
        (ints("ids", 50), floats("past_key", "N", 2, "P", 8), floats("past_state", "N", 8), floats("x", "N"))
    )
    assert list(result.values())[1:] == [InputRole.PAST, InputRole.OTHER, InputRole.OTHER]


def test_what_an_encoder_made_is_no_past() -> None:
    cross = floats("past_key_values.0.encoder.key", "N", 2, "S", 8), floats("past_key_cross_0", "N", 2, "S", 8)
    states, features = floats("encoder_hidden_states", "N", "S", 8), floats("x", "N", 1500, 8)
    result = roles((ints("ids", 50), *cross, states, features))
    assert [*result.values()][1:] == [*[InputRole.HEARD] * 3, InputRole.OTHER]
    assert roles((states,)) == {"encoder_hidden_states": InputRole.OTHER}
