"""What the name of an output says about it."""

import re

# Whole words of a name, of which exporters' own ("output_0", "/model/Concat") say nothing.
CLASSES = frozenset(["logit", "logits", "prob", "probs", "probabilities", "softmax"])
EMBEDDINGS = frozenset(
    ["emb", "embed", "embeds", "embedding", "embeddings", "descriptor", "descriptors", "feature", "features", "pooled"]
    + ["pooler", "vector", "xvector", "dvector"]
)
PLACES = frozenset(
    ["box", "boxes", "bbox", "bboxes", "loc", "locs", "reg", "regression", "delta", "deltas", "landmark", "landmarks"]
    + ["kps", "keypoint", "keypoints", "coord", "coords", "offset", "offsets"]
)
CACHES = frozenset(["present", "cache", "kv"])
STATES = frozenset(
    ["present", "state", "states", "cache", "hn", "cn", "hidden", "memory", "mem", "kv", "next", "new", "carry"]
)


def words(name: str) -> frozenset[str]:
    """The words of a name in lower case: "predBoxes_2" has pred and boxes."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))


def says(name: str, known: frozenset[str]) -> bool:
    """Whether a name has one of these words."""
    return not known.isdisjoint(words(name))
