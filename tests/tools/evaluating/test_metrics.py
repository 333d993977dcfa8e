"""Each metric against what is known of small cases, or what NumPy and SciPy find."""

import math

import numpy as np
import pytest
from judging import case
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import jaccard_score

from ptqc.errors import CalibrationError
from ptqc.tools.evaluating.metric import Case, Metric
from ptqc.tools.evaluating.metrics.cosine import Cosine
from ptqc.tools.evaluating.metrics.cross_entropy import CrossEntropy
from ptqc.tools.evaluating.metrics.mean_iou import MeanIoU
from ptqc.tools.evaluating.metrics.perplexity import Perplexity
from ptqc.tools.evaluating.metrics.psnr import BEST, Psnr
from ptqc.tools.evaluating.metrics.similarity import Similarity, ranks
from ptqc.tools.evaluating.metrics.top_k import TopK
from ptqc.tools.evaluating.metrics.word_errors import WordErrors, distance

RANDOM = np.random.default_rng(0)


def score(metric: Metric, *cases: Case) -> float:
    return metric.score(np.array([metric.measure(one) for one in cases]))


@pytest.mark.parametrize(("k", "wanted"), [(1, 100 / 3), (2, 200 / 3), (3, 100.0)])
def test_top_k(k: int, wanted: float) -> None:
    scores = [[0.5, 0.3, 0.2]]
    assert score(TopK(k), *(case(scores, label) for label in range(3))) == pytest.approx(wanted)


def test_of_equal_scores_the_first_is_the_likeliest_as_argmax_has_it() -> None:
    assert score(TopK(), case([[1.0, 1.0]], 0), case([[1.0, 1.0]], 1)) == 50


@pytest.mark.parametrize("axis", [-1, 1])
def test_classes_of_positions(axis: int) -> None:
    """As tags have their classes along the last axis, and segmentations theirs behind the batch."""
    scores, labels = RANDOM.standard_normal((1, 6, 5, 4)), RANDOM.integers(0, 4, (6, 5))
    wanted = 100 * np.mean(scores[0].argmax(-1) == labels)
    assert score(TopK(), case(np.moveaxis(scores, -1, axis), labels)) == pytest.approx(wanted)
    labels[0] = -1
    counted = 100 * np.mean((scores[0].argmax(-1) == labels)[1:])
    assert score(TopK(), case(np.moveaxis(scores, -1, axis), labels)) == pytest.approx(counted)


def test_mean_iou_adds_pictures_up() -> None:
    scores, masks = RANDOM.standard_normal((2, 4, 6, 5)), RANDOM.integers(0, 4, (2, 6, 5))
    cases = [case(answer[None], mask) for answer, mask in zip(scores, masks, strict=True)]
    own = jaccard_score(masks.reshape(-1), scores.argmax(1).reshape(-1), average="macro")
    metric = MeanIoU()
    assert metric.score(metric.gathered([metric.measure(one) for one in cases])) == pytest.approx(100 * own)
    with pytest.raises(CalibrationError, match="has 4 classes: class numbers start at 0"):
        metric.measure(case(scores[:1], masks[0] + 1))


def test_a_model_that_answers_with_the_class() -> None:
    assert score(TopK(), case(np.array([3]), 3), case(np.array([2]), 3)) == 50
    with pytest.raises(CalibrationError, match="has one class and no scores"):
        TopK(5).measure(case(np.array([3]), 3))
    with pytest.raises(CalibrationError, match="output 'y' has 5 classes, and the label 1"):
        TopK().measure(case(np.zeros((1, 5), np.int64), 3))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (3, "class 3, but output 'y' has 3 classes: class numbers start at 0"),
        ([0, 1], r"has shape \(1, 3\), and the label \(2,\)"),
        ("cat", "the label 'cat' is no class number: write the place of its class among the scores, from 0"),
        (0.5, "the label is of type float64, expected the numbers of classes"),
    ],
)
def test_labels_that_are_no_classes(label: object, expected: str) -> None:
    with pytest.raises(CalibrationError, match=expected):
        TopK().measure(case([[0.1, 0.2, 0.3]], label))


@pytest.mark.parametrize(
    ("metric", "answer", "label", "expected"),
    [
        (WordErrors(), np.eye(6)[None], [0.5], "the label is of type float64, expected the numbers of tokens"),
        (WordErrors(), np.eye(6)[None], math.inf, "the label is of type float64"),
        (CrossEntropy(), np.zeros((1, 1, 4)), [0.5], "the label is of type float64, expected the numbers of tokens"),
        (CrossEntropy(), np.zeros((1, 1, 4)), "cat", "the label is of type str96, expected the numbers of tokens"),
        (Cosine(), [[1.0]], "cat", "the label is 'cat', expected numbers"),
        (Psnr(), [[1.0]], ["cat"], r"the label is \['cat'\], expected numbers"),
    ],
)
def test_labels_of_another_kind(metric: Metric, answer: object, label: object, expected: str) -> None:
    with pytest.raises(CalibrationError, match=f"case 0: {expected}"):
        metric.measure(case(answer, label))


def test_next_tokens() -> None:
    logits, ids = RANDOM.standard_normal((1, 5, 7)), np.array([[3, 1, 6, 0, 2]])
    chances = np.exp(logits[0]) / np.exp(logits[0]).sum(1, keepdims=True)
    nats = -np.log(chances[np.arange(4), ids[0, 1:]])
    assert score(CrossEntropy(), case(logits, ids=ids)) == pytest.approx(nats.mean())
    assert score(Perplexity(), case(logits, ids=ids)) == pytest.approx(np.exp(nats.mean()))
    padded = case(logits, ids=ids, mask=[[0, 1, 1, 1, 0]])
    assert CrossEntropy().measure(padded) == pytest.approx((nats[1:3].sum(), 2))
    labelled = case(logits, [-1, -1, 5, -1, -1])
    assert score(CrossEntropy(), labelled) == pytest.approx(-np.log(chances[2, 5]))


def test_tokens_count_the_same_in_short_and_long_texts() -> None:
    sure, even = np.zeros((1, 9, 2)), np.zeros((1, 2, 2))
    sure[..., 0] = 100
    result = score(CrossEntropy(), case(sure, ids=np.zeros((1, 9), int)), case(even, ids=np.zeros((1, 2), int)))
    assert result == pytest.approx(np.log(2) / 9)


def test_outputs_that_are_no_logits() -> None:
    with pytest.raises(CalibrationError, match=r"has shape \(1, 4\), expected \(1, 3, tokens\).*--score-output"):
        CrossEntropy().measure(case(np.zeros((1, 4)), ids=[[1, 2, 3]]))
    with pytest.raises(CalibrationError, match="token 9 is expected, but the model knows 4"):
        CrossEntropy().measure(case(np.zeros((1, 3, 4)), ids=[[1, 9, 3]]))
    with pytest.raises(CalibrationError, match="no input of tokens"):
        CrossEntropy().measure(case(np.zeros((1, 3, 4))))


def test_similarity_is_spearmans_correlation_of_cosines() -> None:
    vectors, wanted = RANDOM.standard_normal((20, 2, 1, 6)), RANDOM.integers(0, 6, 20)
    cases = [
        Case("", [{}, {}], [{"y": pair[0]}, {"y": pair[1]}], [], label, "y", {})
        for pair, label in zip(vectors, wanted, strict=True)
    ]
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    result = 100 * spearmanr((unit[:, 0] * unit[:, 1]).sum((1, 2)), wanted)[0]
    assert score(Similarity(), *cases) == pytest.approx(result)
    assert ranks(wanted).tolist() == rankdata(wanted).tolist()
    assert math.isnan(Similarity().score(np.ones((3, 2))))
    with pytest.raises(CalibrationError, match="expected a number"):
        Similarity().measure(case([[1.0]], "alike"))


def test_of_a_vector_for_each_token_those_of_padding_do_not_count() -> None:
    answer, mask = RANDOM.standard_normal((1, 3, 4)), [[1, 1, 0]]
    value = case(answer, answer[0, :2].mean(0), ids=[[5, 6, 0]], mask=mask)
    assert score(Cosine(), value) == pytest.approx(1)
    assert score(Cosine(), case(answer, answer[0].mean(0), ids=[[5, 6, 0]], mask=mask)) < 0.999


def test_cosine_to_the_first_model_or_to_labels() -> None:
    turned = case([[1.0, 1.0]], first=[[1.0, 0.0]])
    assert score(Cosine(), turned) == pytest.approx(np.sqrt(0.5))
    measured = np.array([[0.5], [0.9]])
    assert (Cosine().score(measured), Cosine().details(measured)) == (pytest.approx(0.7), {"worst": 0.5})
    assert score(Cosine(), case([[1.0, 0.0]], [0.0, 1.0])) == 0
    assert score(Cosine(), case([[0.0, 0.0]], [0.0, 1.0])) == 0
    with pytest.raises(CalibrationError, match="has 2 numbers, and the label 3"):
        Cosine().measure(case([[1.0, 0.0]], [1, 2, 3]))


@pytest.mark.parametrize(
    ("result", "wanted", "errors"),
    [
        ("a b c", "a b c", 0),
        ("", "a b", 2),
        ("a b", "", 2),
        ("a x c", "a b c", 1),
        ("b c a", "a b c", 2),
        ("s i t t i n g", "k i t t e n", 3),
    ],
)
def test_distance_of_words(result: str, wanted: str, errors: int) -> None:
    assert distance(result.split(), wanted.split()) == distance(wanted.split(), result.split()) == errors


def heard(*tokens: int) -> np.ndarray:
    return np.eye(6)[np.array([tokens])]


def test_word_errors_of_scores_and_of_tokens() -> None:
    """Blanks are no words, and what is held is one."""
    assert score(WordErrors(), case(heard(0, 3, 3, 0, 3, 5, 5), [3, 3, 5])) == 0
    assert score(WordErrors(blank=5), case(heard(0, 3, 3, 0, 3, 5, 5), [3, 3, 5, -1])) == pytest.approx(100)
    assert score(WordErrors(), case(np.array([[4, 2, 1]]), [4, 1])) == 50
    with pytest.raises(CalibrationError, match=r"expected \(1, positions, tokens\)"):
        WordErrors().measure(case(np.zeros((4, 5)), [1]))


def test_word_errors_of_texts() -> None:
    names = {1: "the", 2: "cat", 3: "sat"}

    def decode(tokens: object) -> str:
        return " ".join(names[token] for token in tokens)  # type: ignore[attr-defined]

    value = case(heard(1, 0, 2, 3), "the cat ran home")
    with pytest.raises(CalibrationError, match="give the --tokenizer"):
        WordErrors().measure(value)
    judged = Case(value.name, value.feeds, value.outputs, value.firsts, value.label, "y", {}, decode)
    assert score(WordErrors(), judged) == 50


def test_psnr() -> None:
    picture = RANDOM.uniform(0, 1, (1, 3, 4, 4))
    assert score(Psnr(), case(picture + 0.1, picture)) == pytest.approx(20)
    assert score(Psnr(peak=10), case(picture + 0.1, picture)) == pytest.approx(40)
    assert score(Psnr(), case(picture, first=picture)) == BEST
    whole = (200 * picture).astype(np.uint8)
    assert score(Psnr(), case(whole + 1, whole[0])) == pytest.approx(20 * np.log10(255))
    with pytest.raises(CalibrationError, match=r"and the label \(3, 4\)"):
        Psnr().measure(case(picture, picture[0, 0, :3]))


def test_lower_is_better_of_costs_and_errors() -> None:
    kinds: list[type[Metric]] = [TopK, CrossEntropy, Perplexity, Similarity, Cosine, WordErrors, Psnr]
    assert [kind.higher_is_better for kind in kinds] == [True, False, False, True, True, False, True]


def test_nan_is_no_good_answer() -> None:
    nothing = np.full((1, 3), np.nan)
    assert [score(TopK(k), case(nothing, label)) for k in (1, 2) for label in range(3)] == [0] * 6
    assert [score(TopK(), case([[1.0, np.nan, 0.0]], label)) for label in (0, 2)] == [0, 0]
    assert math.isnan(score(Psnr(), case(nothing, np.zeros((1, 3)))))
    assert math.isnan(Similarity().score(np.array([[0.1, 1.0], [0.2, 2.0], [np.nan, 3.0]])))
