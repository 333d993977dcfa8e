"""The metrics that there are; another one is a class in a file of its own, and a name here."""

from ptqc.tools.evaluating.metric import Metric
from ptqc.tools.evaluating.metrics.cosine import Cosine
from ptqc.tools.evaluating.metrics.cross_entropy import CrossEntropy
from ptqc.tools.evaluating.metrics.mean_ap import MeanAP
from ptqc.tools.evaluating.metrics.mean_iou import MeanIoU
from ptqc.tools.evaluating.metrics.perplexity import Perplexity
from ptqc.tools.evaluating.metrics.psnr import Psnr
from ptqc.tools.evaluating.metrics.similarity import Similarity
from ptqc.tools.evaluating.metrics.top_k import TopK
from ptqc.tools.evaluating.metrics.word_errors import WordErrors

METRICS: tuple[type[Metric], ...] = (
    TopK,
    MeanAP,
    MeanIoU,
    CrossEntropy,
    Perplexity,
    Similarity,
    Cosine,
    WordErrors,
    Psnr,
)
