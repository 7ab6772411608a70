"""Write the embeddings of a data file's problems, which `--sampler embedded` reads.

    python -m scripts.embed Qwen/Qwen2.5-1.5B --data data/openmathreasoning/train.jsonl

The model reads each problem once, as App. L's frozen teacher, on one GPU or the CPU. The file lies
beside the data (train.embeddings.safetensors) and holds the mean over the tokens of each problem in
float16, standardised over the data: 0.9 GiB for 300,000 problems and Qwen2.5-1.5B.
"""

from pathlib import Path

import safetensors.torch
import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from plumbing.batches import cut_longest_first, pad
from plumbing.command_line import count
from plumbing.config import Config
from plumbing.data.problems import Problems
from plumbing.distributed.layout import device_type
from plumbing.distributed.shutdown import begin_process
from plumbing.files import write_atomic
from plumbing.models import load
from samplers.embedded import path_of
from scripts.command import exit_on_error, make_parser
from teacher import UtilityModel, check_teacher

TOKENS = 16_384  # of a batch, padding included


@torch.no_grad()
def embed(name: str, texts: list[str], max_tokens: int, device: str) -> torch.Tensor:
    """Compute each text's embedding by the frozen teacher, cut at max_tokens: float32 (N, D)."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = UtilityModel(load(AutoModel, name, torch.float32, "sdpa", device), "frozen")
    model = model.to(device).eval()
    rows = [ids[:max_tokens] or [tokenizer.pad_token_id] for ids in tokenizer(texts).input_ids]
    pooled_N_D = torch.empty(len(rows), model.head.in_features)
    parts = cut_longest_first([len(ids) for ids in rows], TOKENS)
    for part in tqdm(parts, unit="batch"):
        inputs = pad([rows[i] for i in part], tokenizer.pad_token_id, device)
        pooled_N_D[part] = model.embed(*inputs).cpu()
    return pooled_N_D


def save(embedding_N_D: torch.Tensor, name: str, data: Path, crc32: int) -> Path:
    """Standardise each dimension and write the file, which holds all of it or the previous. crc32:
    of the data when they were read."""
    embedding_N_D = embedding_N_D - embedding_N_D.mean(dim=0)
    embedding_N_D /= embedding_N_D.std(dim=0, correction=0).clamp_min(1e-6)
    path = path_of(data)
    source = {"model": name, "crc32": str(crc32)}
    write_atomic(path, safetensors.torch.save({"embeddings": embedding_N_D.half()}, source))
    return path


def main(argv=None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("model", help="hub id or directory")
    add("--data", required=True, help="JSONL or Parquet")
    add("--max_prompt_tokens", type=count, default=Config.max_prompt_tokens, help="(%(default)s)")
    begin_process()
    with exit_on_error("embed"):
        args = parser.parse_args(argv)
        check_teacher(args.model, args.max_prompt_tokens)
        problems = Problems(args.data)
        texts = [problems.question(i) for i in range(len(problems))]
        embedding_N_D = embed(args.model, texts, args.max_prompt_tokens, device_type("auto"))
        path = save(embedding_N_D, args.model, problems.path, problems.crc32)
    print(path)


if __name__ == "__main__":
    main()
