"""A decoder whose costs can be computed by hand."""

from types import SimpleNamespace

from benchmarks.roofline import SIZES, Shape

# Hidden 4, MLP 6, 2 layers, 2 heads and 1 key-value head of 3, 10 words, tied: 328 weights.
TINY = Shape(
    SimpleNamespace(
        model_type="llama", **dict(zip(SIZES, (4, 6, 2, 2, 1, 3, 10, True), strict=True))
    )
)
