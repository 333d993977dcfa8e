"""Whether a model with packed caches does what the forms of its caches say, on samples.

Operators pack and unpack in the model, NumPy does in the forms. What is kept of earlier places must come out with its
bits; what is new, as near as the form can be; and what the model computes of both, as of the same numbers unpacked.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
import onnx_ir as ir

from ptqc.errors import CalibrationError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.layers import Cache, find_caches
from ptqc.kv_cache.form import CacheForm, packed_feeds, unpacked_feeds

SAMPLES = 4
# How far outputs may differ, as a share of the largest; and errors of what is new, as a share of the largest of a row.
TOLERANCE, ROUNDING = 1e-4, 1e-5
# ONNX Runtime may compute what is packed with other last bits, which a code half way between others turns to either.
FACTOR = 1.01


def check_packing(model: ir.Model, packed: ir.Model, forms: Mapping[str, CacheForm], samples: Iterable[Feeds]) -> None:
    """Raises VerificationError naming the cache or the output that differs. samples: as the model itself takes them.

    Raises CalibrationError where the model hands on what is not finite, UsageError where it is no cache that grows.
    """
    caches = [cache for cache in find_caches(model) if cache.name in forms]
    presents = {str(cache.present.name) for cache in caches}
    packed_inputs = [packed_feeds(feeds, forms) for feeds in islice(samples, SAMPLES)]
    unpacked_inputs = [unpacked_feeds(feeds, forms) for feeds in packed_inputs]
    for cache in caches:
        _check_bits(cache.name, forms[cache.name], unpacked_inputs, packed_inputs)
    # One model after the other: there may be no room for both.
    every_wanted, every_result = _run(model, unpacked_inputs), _run(packed, packed_inputs)
    for feeds, wanted, result in zip(packed_inputs, every_wanted, every_result, strict=True):
        for cache in caches:
            past = _parts(cache.name, forms[cache.name], feeds)
            _check_cache(cache, forms[cache.name], past, wanted[str(cache.present.name)], result)
        for name, array in wanted.items():
            if name not in presents:
                _check_output(name, array, result[name])


def _run(model: ir.Model, samples: Iterable[Feeds]) -> list[dict[str, np.ndarray]]:
    runner = Runner(model)
    return [runner.run(feeds) for feeds in samples]


def _parts(name: str, form: CacheForm, values: Feeds) -> list[np.ndarray]:
    return [values[name + suffix] for suffix in form.suffixes]


def _check_bits(name: str, form: CacheForm, unpacked_inputs: Iterable[Feeds], several_feeds: Iterable[Feeds]) -> None:
    """What was unpacked has to pack to the same again."""
    for real, stored in zip(unpacked_inputs, several_feeds, strict=True):
        again = form.pack(real[name])
        if not all(np.array_equal(*both) for both in zip(again, _parts(name, form, stored), strict=True)):
            raise VerificationError(f"what {form.name} unpacks of {name} is packed to other bits")


def _check_cache(cache: Cache, form: CacheForm, past: list[np.ndarray], real: np.ndarray, feeds: Feeds) -> None:
    """past: its parts as they came in. real: what the model would hand on unpacked."""
    name, places = str(cache.present.name), past[0].shape[-2]
    if not np.isfinite(real).all():
        raise CalibrationError(
            f"the cache {name} holds NaN or infinite values on the calibration samples, which cannot be packed: check "
            f"the samples, or keep it in float with --kv-cache {cache.name}=float"
        )
    stored = _parts(name, form, feeds)
    is_grown = real.shape[-2] > places
    if is_grown and not all(np.array_equal(new[..., :places, :], old) for new, old in zip(stored, past, strict=True)):
        if not np.array_equal(real[..., :places, :], form.unpack(*past)):
            raise UsageError(
                f"the model does not hand on what comes in as {cache.name} at the beginning of {name}, so it cannot be "
                f"packed: keep it in float with --kv-cache {cache.name}=float"
            )
        raise VerificationError(f"{name} does not hand on what came in as {cache.name}, packed as {form.name}")
    errors, least = (np.abs(form.unpack(*parts) - real).max(-1) for parts in (stored, form.pack(real)))
    if not (errors <= FACTOR * least + ROUNDING * np.abs(real).max(-1)).all():
        raise VerificationError(
            f"{name} is packed as {form.name} with an error of {errors.max():.1e}, where {least.max():.1e} is enough"
        )


def _check_output(name: str, wanted: np.ndarray, array: np.ndarray) -> None:
    if wanted.dtype.kind != "f":
        return
    allowed = TOLERANCE * float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        distance = np.where(wanted == array, 0.0, np.abs(wanted - array))
    if wanted.shape != array.shape or not (distance[~np.isnan(wanted)] <= allowed).all():
        raise VerificationError(f"{name} differs with packed caches: their operators do not unpack what was packed")
