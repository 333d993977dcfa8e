"""One thread for NumPy's products."""

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits


def one_blas_thread() -> AbstractContextManager[object]:
    """The rounding of products, and with it the delivered bytes, depends on the number of threads."""
    limits: AbstractContextManager[object] = threadpool_limits(1, "blas")
    return limits
