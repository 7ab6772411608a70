"""What a version of transformers makes of a model directory; imports nothing of this project.

python read_model.py OUT DIRECTORY PROMPT writes it as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def read_model(folder: str, prompt: str) -> dict:
    """Return the prompt's ids, a greedy completion and the logits of both."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lm = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = inputs.input_ids
    with torch.no_grad():
        out = lm.generate(ids, do_sample=False, max_new_tokens=20, attention_mask=ids * 0 + 1)
        logits = lm(out).logits[0]
    return {"prompt": ids[0].tolist(), "tokens": out[0].tolist(), "logits": logits.tolist()}


if __name__ == "__main__":
    out, *inputs = sys.argv[1:]
    Path(out).write_text(json.dumps(read_model(*inputs)))
