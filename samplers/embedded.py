"""Alg. 1 with a linear regression on embeddings on disk: a frozen teacher that costs no device."""

from collections import deque
from pathlib import Path

import numpy as np
from safetensors import safe_open
from scipy.linalg import cho_factor, cho_solve

from plumbing.errors import InputError
from plumbing.files import file_crc32
from sampler import Context, Pooled


def path_of(data: str | Path) -> Path:
    """Return the file beside a data file that `python -m scripts.embed` writes."""
    return Path(data).with_suffix(".embeddings.safetensors")


class Embedded(Pooled):
    """A problem's utility is 1/4 + b + w·e, clipped to [0, 0.5]. Its embedding e has mean 0 and
    variance 1/D in each of D dimensions over the data. After each round w and b minimise
    Σ (f - y)² + ridge (|w|² + b²) over the latest `window` outcomes, exactly. App. L's frozen
    teacher has these features, a sigmoid, and AdamW on the latest 64."""

    def __init__(self, context: Context, ridge=1.0, window=1024):
        super().__init__(context)
        self.ridge = ridge
        self.outcomes = deque(maxlen=window)  # problem and y of each
        self.load()
        self.fit()

    def load(self) -> None:
        """Map the embeddings of the training data, float16 (problems, D), into memory. Raises
        InputError if there are none, or they are of other data."""
        config = self.context.config
        data = config.train_data
        path = path_of(data)
        source = {"crc32": ""}
        if path.exists():
            with safe_open(path, "pt") as file:
                self._embeddings = file.get_tensor("embeddings").numpy()
                source = file.metadata()
        if source["crc32"] != str(file_crc32(Path(data))):
            tokens = config.max_prompt_tokens
            command = f"python -m scripts.embed MODEL --data {data} --max_prompt_tokens {tokens}"
            raise InputError(f"{path} is missing, or {data} has changed since: run {command}")
        self.model = source["model"]

    def features(self, index_M) -> np.ndarray:
        """Return (e, 1) of each problem: float64 (M, D + 1)."""
        index_M = np.array(index_M, dtype=np.int64)
        e_M_D = self._embeddings[index_M].astype(float)
        e_M_D /= e_M_D.shape[1] ** 0.5
        one_M = np.ones(len(e_M_D))
        return np.column_stack([e_M_D, one_M])

    def fit(self) -> None:
        """Solve the regression by its M × M kernel matrix."""
        index_M = [problem for problem, _ in self.outcomes]
        y_M = np.array([y for _, y in self.outcomes])
        x_M_D = self.features(index_M)
        kernel_M_M = x_M_D @ x_M_D.T
        kernel_M_M[np.diag_indices(len(x_M_D))] += self.ridge
        # Positive definite, and its transpose, which is laid out as LAPACK wants it, is the same:
        # nothing is copied.
        factor = cho_factor(kernel_M_M.T, overwrite_a=True, check_finite=False)
        alpha_M = cho_solve(factor, y_M - 1 / 4)
        self._weight_D = alpha_M @ x_M_D

    def score(self, pool_P_K):
        x_M_D = self.features(pool_P_K.ravel())
        f_M = 1 / 4 + x_M_D @ self._weight_D
        return f_M.clip(0, 0.5).reshape(pool_P_K.shape)

    def observe(self, groups):
        super().observe(groups)
        for group in groups:
            self.outcomes.append((group.problem, group.y))
        self.fit()

    def load_state_dict(self, state: dict) -> None:
        if state["model"] != self.model:
            raise InputError(
                f"the embeddings are of {self.model}, those of the checkpoint of {state['model']}"
            )
        super().load_state_dict(state)
        self.fit()
