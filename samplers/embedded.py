"""Alg. 1 with a linear regression on embeddings on disk: a frozen teacher that costs no device."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from plumbing.errors import InputError
from plumbing.files import digest
from sampler import Context, Pooled

MEAN = 1 / 4  # utility without any outcome, the middle of its range


def path_of(data: str | Path) -> Path:
    """Return the file beside a data file that `python -m scripts.embed` writes."""
    return Path(data).with_suffix(".embeddings.safetensors")


def load(data: str, tokens: int) -> tuple[np.ndarray, str]:
    """Map the embeddings of a run's training data, float16 (problems, D), into memory; return them
    and their model's name. Raises InputError if the file is missing, damaged, or of other data."""
    path = path_of(data)
    remedy = f"python -m scripts.embed MODEL --data {data} --max_prompt_tokens {tokens}"
    try:
        with safe_open(path, "pt") as file:
            embeddings = file.get_tensor("embeddings").numpy()
            source = file.metadata()
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: missing or damaged ({error}); run {remedy}") from error
    _, crc32 = digest(Path(data))
    if source["crc32"] != str(crc32):
        raise InputError(f"{path}: {data} has changed since; run {remedy}")
    return embeddings, source["model"]


class Embedded(Pooled):
    """A problem's utility is 1/4 + b + w·e, clipped to [0, 0.5]. Its embedding e has mean 0 and
    variance 1/D in each of D dimensions over the data. After each round w and b minimise
    Σ (f - y)² + ridge (|w|² + b²) over the latest `window` outcomes, exactly. App. L's frozen
    teacher has these features, a sigmoid, and AdamW on the latest 64."""

    flags = ("candidates", "epsilon")
    settings = {"ridge": 1.0, "window": 1024}
    learned = {"index_M": np.empty(0, dtype=np.int64), "y_M": np.empty(0), "model": ""}

    def __init__(self, context: Context):
        super().__init__(context)
        config = context.config
        self.embeddings, self.model = load(config.train_data, config.max_prompt_tokens)
        self.fit()

    def features(self, index_M) -> np.ndarray:
        """Return (e, 1) of each problem: float64 (M, D + 1)."""
        D = self.embeddings.shape[1]
        standard_M_D = self.embeddings[index_M].astype(float)  # of variance 1
        e_M_D = standard_M_D / D**0.5
        one_M = np.ones(len(e_M_D))
        return np.column_stack([e_M_D, one_M])

    def fit(self) -> None:
        """Solve the regression by its M × M kernel matrix."""
        x_M_D = self.features(self.index_M)
        product_M_M = x_M_D @ x_M_D.T
        identity_M_M = np.eye(len(x_M_D))
        ridge_M_M = self.settings["ridge"] * identity_M_M
        kernel_M_M = product_M_M + ridge_M_M
        residual_M = self.y_M - MEAN
        dual_M = np.linalg.solve(kernel_M_M, residual_M)
        self.weight_D = dual_M @ x_M_D

    def score(self, pool_N_K):
        x_M_D = self.features(pool_N_K.ravel())
        f_M = MEAN + x_M_D @ self.weight_D
        f_N_K = f_M.reshape(pool_N_K.shape)
        return f_N_K.clip(0, 0.5)

    def observe(self, groups):
        window = self.settings["window"]
        index_N = [group.problem for group in groups]
        y_N = [group.y for group in groups]
        index_M = np.append(self.index_M, index_N)
        y_M = np.append(self.y_M, y_N)
        self.index_M = index_M[-window:]
        self.y_M = y_M[-window:]
        self.fit()

    def load_state_dict(self, state: dict) -> None:
        if state["model"] != self.model:
            raise InputError(
                f"the embeddings are of {self.model}, and those of the checkpoint are of "
                f"{state['model']}: restore them, or choose another --out"
            )
        super().load_state_dict(state)
        self.fit()
