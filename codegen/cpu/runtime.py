"""Running what the target cpu built: needs numpy and TVM's runtime only."""

from ptqc.runtime.library import Library

load = Library.open
