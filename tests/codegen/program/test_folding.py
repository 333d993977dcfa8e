from graphs import parse

from ptqc.codegen.program.folding import _nodes


def test_sequences_are_no_constants() -> None:
    """What begins as an empty one depends on nothing, and still is no array."""
    body = "s = SequenceEmpty() t = SequenceInsert(s, x) y = ConcatFromSequence<axis=0>(t)"
    assert _nodes(parse(f"g (float[1,4] x) => (float[M,4] y) {{ {body} }}"), set()) == []
