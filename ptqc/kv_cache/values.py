"""Values of a model with caches, as its packed form takes or gives them, and back."""

from collections.abc import Mapping

import numpy as np

from ptqc.kv_cache.form import CacheForm

Values = Mapping[str, np.ndarray]


def packed_feeds(feeds: Values, forms: Mapping[str, CacheForm]) -> dict[str, np.ndarray]:
    """Feeds of the model as it was, as its packed form takes them. forms: by the name of the cache."""
    found = dict[str, np.ndarray]()
    for name, array in feeds.items():
        found.update(packed_arrays(name, array, forms[name]) if name in forms else {name: array})
    return found


def unpacked_feeds(feeds: Values, forms: Mapping[str, CacheForm]) -> dict[str, np.ndarray]:
    """What a packed model takes or gives, as the model as it was: of caches their real values, by the same name."""
    stored = {name + suffix for name, form in forms.items() for suffix in form.suffixes}
    real = {name: real_of(name, feeds, form) for name, form in forms.items()}
    return {**{name: array for name, array in feeds.items() if name not in stored}, **real}


def real_of(name: str, values: Values, form: CacheForm) -> np.ndarray:
    """The real values of one cache, whose parts are among others."""
    return form.unpack(*(values[name + suffix] for suffix in form.suffixes))


def packed_arrays(name: str, array: np.ndarray, form: CacheForm) -> dict[str, np.ndarray]:
    """The parts of one cache by the names of their inputs."""
    parts = form.parts(array.shape[-1])
    return {name + part.suffix: stored for part, stored in zip(parts, form.pack(array), strict=True)}
