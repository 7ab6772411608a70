"""Floors of a step against transformers' and torch's counts, and by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from benchmarks.roofline import SHAPES, Machine, Shape, floors, model_config
from tests.helpers.shapes import TINY


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_and_flops_of_a_shape_are_those_of_its_model(name):
    """Norms and biases, which are left out, are below 0.1%."""
    config = model_config(name, num_hidden_layers=2)
    shape, T = Shape(config), 5
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, T, dtype=torch.long))
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)
    flops = shape.forward_flops(T, T * T, T)  # eager attention also computes masked scores
    assert flops == pytest.approx(counter.get_total_flops(), rel=1e-3)


def test_floors_by_hand():
    """Two prompts of 3 tokens, two completions each; two ranks train on the second prompt's."""
    rows = {"prompt_B": [3] * 4, "new_B": [2, 1, 2, 3], "live": [2, 3], "G": 2, "ranks": 2}
    flops = floors(TINY, Machine(bandwidth=1e30, rate=1), **rows, size=4)
    # 2 x 3 prompt tokens attend to 12 keys and make the first tokens; then 1 + 0 + 1 + 2 tokens
    # attend to 4, none, 4, and 4 + 5.
    assert flops["rollout_s"] == TINY.forward_flops(6 + 4, 12 + 4 + 4 + 9, 2 + 4) / 2
    assert flops["train_s"] == pytest.approx(3 * TINY.forward_flops(5 + 6, 15 + 21, 2 + 3) / 2)
    moved = floors(TINY, Machine(bandwidth=1, rate=1e30), **rows, size=4)
    # float32: 328 weights at 2 positions; keys and values of 17 tokens, 2 x 2 layers x 3 each.
    assert moved["rollout_s"] == 4 * (2 * 328 + 17 * 12 / 2)
    assert moved["train_s"] == pytest.approx(7 * 4 * 328 / 2 + (4 + 4) * 328)
    # 2 layers of 10 kernels, and 3: in one pass for the prompts, one for each of two more tokens.
    launched = floors(TINY, Machine(bandwidth=1e30, rate=1e30, launch=1.0), **rows, size=4)
    assert launched["rollout_s"] == 23 * 3 and launched["train_s"] == pytest.approx(23 * 3)
    machine = Machine(bandwidth=10.0, rate=100.0)  # the slower of the two counts
    assert machine.floor(flops=300, moved=20) == 3.0 and machine.floor(flops=100, moved=20) == 2.0
