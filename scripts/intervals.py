"""How sure is a number? The tests and intervals that compare.py, evaluate.py, plot.py and audit.py use; numpy only."""

import math

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def t_p_value(t: float, df: float) -> float:
    """P(|T| > |t|) for Student's t with df >= 1 degrees of freedom.

    With T = √df / tan φ the density is proportional to sin^(df-1) φ on [0, π/2], and |T| > |t| where φ is small: the
    integral is taken there alone, so that tiny p-values keep their digits.
    """
    end = math.atan2(math.sqrt(df), abs(t))
    tail = end / 2 * (WEIGHTS * np.sin(end / 2 * (NODES + 1)) ** (df - 1)).sum()
    return min(
        1.0,
        float(tail)
        * 2
        / math.sqrt(math.pi)
        * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)),
    )


def t_quantile(df: float, level: float = 0.95) -> float:
    """The t that |T| stays below with probability `level`: 4.303 for 2 degrees of freedom, 1.960 for very many."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, df) > 1 - level else (low, middle)
    return middle


def t_interval(values) -> tuple[float, float]:
    """95% interval of the mean of at least two values: mean ± t · s/√n, s with n - 1."""
    half = t_quantile(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def t_difference(a, b, paired: bool) -> tuple[float, tuple[float, float], float]:
    """mean(a) - mean(b), its 95% interval and two-sided p: of the differences a_i - b_i, or Welch's; n >= 2 each."""
    if paired:
        variance, df = np.var(np.subtract(a, b), ddof=1) / len(a), len(a) - 1
    else:
        parts = [(np.var(x, ddof=1) / len(x), len(x) - 1) for x in (a, b)]
        variance = sum(v for v, _ in parts)
        df = variance**2 / sum(v**2 / n for v, n in parts) if variance else 1  # Welch-Satterthwaite
    difference, error = float(np.mean(a) - np.mean(b)), math.sqrt(variance)
    half = t_quantile(df) * error
    p = t_p_value(difference / error, df) if error else float(difference == 0)
    return difference, (difference - half, difference + half), p


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided p of b problems that only one run solved against c that only the other did: a fair coin's."""
    n = b + c
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n)


def bootstrap(values, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of the mean over problems drawn with replacement.

    Verdicts take few values, so a resample of n is one multinomial draw over them, however large n is.
    """
    values, counts = np.unique(np.round(values, 12), return_counts=True)
    n = counts.sum()
    means = np.random.default_rng(seed).multinomial(n, counts / n, size=resamples) @ values / n
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95% interval of a share: the p that lie within z standard errors, their own, of successes / n."""
    p, shrink = successes / n, 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / shrink
    centre = (p + z * z / (2 * n)) / shrink
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, c of n being so: 1 - C(n-c, k) / C(n, k)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)
