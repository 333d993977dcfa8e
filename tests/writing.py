"""Texts, their tokenizers and small models of texts, for the tests that read some."""

from pathlib import Path

import numpy as np
import onnx
from compiling import proto, weight
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("the", "a", "cat", "dog", "bird", "sees", "hears", "likes", "red", "old", "small", "house", "tree", ".")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ROWS, WIDTH, POSITIONS = 20, 16, 40
# One layer of BERT, as exporters write it; the mask goes through casts and arithmetic to the softmax.
ENCODER = """g (int64[N,T] input_ids, int64[N,T] attention_mask, int64[N,T] token_type_ids) => (float[N,T,16] hidden) {
    words = Gather(word_table, input_ids)
    types = Gather(type_table, token_type_ids)
    shape = Shape(input_ids)
    length = Gather(shape, one)
    places = Slice(place_table, zero, length, zero)
    sum = Add(words, types)
    x = Add(sum, places)
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    kt = Transpose<perm=[0,2,1]>(k)
    scores = MatMul(q, kt)
    wide = Unsqueeze(attention_mask, one)
    real = Cast<to=1>(wide)
    inverse = Sub(unit, real)
    added = Mul(inverse, lowest)
    masked = Add(scores, added)
    p = Softmax<axis=-1>(masked)
    mixed = MatMul(p, v)
    out = MatMul(mixed, wo)
    hidden = Add(out, x)
}"""


def encoder() -> onnx.ModelProto:
    """A model of texts with the inputs of BERT; its table has ROWS rows."""
    products = {name: weight(WIDTH, WIDTH, seed=i) / 2 for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    tables = {"word_table": weight(ROWS, WIDTH, seed=5), "type_table": weight(2, WIDTH, seed=6)}
    numbers: dict[str, np.ndarray | np.generic] = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "unit": np.float32(1),
        "lowest": np.float32(-1e9),
    }
    return proto(ENCODER, place_table=weight(POSITIONS, WIDTH, seed=7), **products, **tables, **numbers)


def tokenizer(folder: Path, words: tuple[str, ...] = WORDS, special: tuple[str, ...] = SPECIAL) -> Path:
    """A `tokenizer.json` of whole words, which begins a text with [CLS] and ends it with [SEP] where it has these."""
    numbers = {word: number for number, word in enumerate((*special, *words))}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]" if "[UNK]" in special else None))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if "[CLS]" in special:
        ends = [(token, numbers[token]) for token in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts of 2 to 12 words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, 13))) for _ in range(count)]
