"""The metrics that there are; another one is a class in a file of its own, and a name here."""

from ptqc.stages.evaluating.metric import Metric
from ptqc.stages.evaluating.metrics.cosine import Cosine
from ptqc.stages.evaluating.metrics.cross_entropy import CrossEntropy
from ptqc.stages.evaluating.metrics.perplexity import Perplexity
from ptqc.stages.evaluating.metrics.psnr import Psnr
from ptqc.stages.evaluating.metrics.similarity import Similarity
from ptqc.stages.evaluating.metrics.top_k import TopK
from ptqc.stages.evaluating.metrics.word_errors import WordErrors

METRICS: tuple[type[Metric], ...] = (TopK, CrossEntropy, Perplexity, Similarity, Cosine, WordErrors, Psnr)
