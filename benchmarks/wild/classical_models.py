"""scikit-learn and LightGBM by way of skl2onnx and onnxmltools."""

from dataclasses import replace
from typing import Any

import numpy as np
import prose
import series
from common import REMEDIED, Data, Place, split
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC

CALIBRATION, EVALUATION = 256, 400
HASHES = 2048


def convert(place: Place, model: Any, x: np.ndarray, opset: int, **options: Any) -> None:
    """The usual way, with a free batch."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    kinds = [("X", FloatTensorType([None, x.shape[1]]))]
    converted = convert_sklearn(model, initial_types=kinds, target_opset={"": opset, "ai.onnx.ml": 3}, **options)
    place.model.write_bytes(converted.SerializeToString())


def convert_both(place: Place, model: Any, x: np.ndarray, opset: int) -> None:
    """By default, and without the maps that a classifier gives its scores in then."""
    convert(place, model, x, opset)
    convert(replace(place, name=REMEDIED), model, x, opset, options={"zipmap": False})


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The digits as rows of 64 numbers from 0 to 16, in a fixed random order."""
    dataset = load_digits()
    order = np.random.default_rng(0).permutation(len(dataset.data))
    return dataset.data[order].astype(np.float32), dataset.target[order]


def digits_network() -> tuple[Any, np.ndarray]:
    """Standardized pixels through two hidden layers."""
    x, y = digits()
    model = make_pipeline(StandardScaler(), MLPClassifier((128, 64), max_iter=40, random_state=0))
    return model.fit(x[:-EVALUATION], y[:-EVALUATION]), x


def digits_mlp(place: Place) -> Data:
    model, x = digits_network()
    convert_both(place, model, x, 17)
    return split({"X": x}, CALIBRATION, EVALUATION)


def digits_mlp_fp16(place: Place) -> Data:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    x, y = digits()
    model = MLPClassifier((128, 64), max_iter=40, random_state=0).fit(x[:-EVALUATION] / 16, y[:-EVALUATION])
    convert(place, model, x, 15, options={"zipmap": False})
    onnx.save(convert_float_to_float16(onnx.load(place.model)), place.model)
    return split({"X": (x / 16).astype(np.float16)}, CALIBRATION, EVALUATION)


def digits_forest(place: Place) -> Data:
    x, y = digits()
    model = RandomForestClassifier(40, random_state=0).fit(x[:-EVALUATION], y[:-EVALUATION])
    convert(place, model, x, 17)
    return split({"X": x}, CALIBRATION, EVALUATION)


def documents() -> tuple[np.ndarray, np.ndarray]:
    """Paragraphs as counts of hashed words, and their topics by name."""
    texts, topics = prose.labelled()
    counts = HashingVectorizer(n_features=HASHES, alternate_sign=False, norm=None).transform(texts)
    return counts.toarray().astype(np.float32), np.array(prose.TOPICS)[topics]


def docs_logistic(place: Place) -> Data:
    x, y = documents()
    model = make_pipeline(Normalizer(), LogisticRegression(max_iter=100)).fit(x[:-EVALUATION], y[:-EVALUATION])
    convert_both(place, model, x, 15)
    return split({"X": x}, CALIBRATION, EVALUATION)


def docs_svm(place: Place) -> Data:
    x, y = documents()
    model = LinearSVC().fit(x[:-EVALUATION], y[:-EVALUATION])
    convert(place, model, x, 18)
    return split({"X": x}, CALIBRATION, EVALUATION)


def visits(place: Place) -> tuple[np.ndarray, np.ndarray]:
    """People's insurance and health, and how often they see a doctor, as statsmodels ships it."""
    columns = series.table(place.packages, "randhie")
    order = np.random.default_rng(0).permutation(len(columns["mdvis"]))
    known = [columns[name] for name in columns if name != "mdvis"]
    return np.stack(known, 1)[order].astype(np.float32), np.log1p(columns["mdvis"][order])


def visits_mlp(place: Place) -> Data:
    x, y = visits(place)
    network = MLPRegressor(hidden_layer_sizes=(96, 48), max_iter=12, random_state=0)
    model = make_pipeline(StandardScaler(), network).fit(x[:-EVALUATION], y[:-EVALUATION])
    convert(place, model, x, 13)
    return split({"X": x}, CALIBRATION, EVALUATION)


def visits_lightgbm(place: Place) -> Data:
    from lightgbm import LGBMRegressor
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = visits(place)
    model = LGBMRegressor(n_estimators=60, n_jobs=1, verbose=-1).fit(x[:-EVALUATION], y[:-EVALUATION])
    kinds = [("X", FloatTensorType([None, x.shape[1]]))]
    place.model.write_bytes(convert_lightgbm(model, initial_types=kinds, target_opset=15).SerializeToString())
    return split({"X": x}, CALIBRATION, EVALUATION)
