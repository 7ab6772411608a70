"""--reward: runs whose completions a function of one's own grades, named and called as verl's are.

What the verifier does with such a function, case by case, is in test_verify.py.
"""

import pytest
from ranks import on_ranks

import train
from plumbing.files import read_lines

HALF = """
calls = []

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    calls.append(solution_str)
    return {"score": len(calls) % 2}
"""
BOXED = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float("boxed{" + ground_truth + "}" in solution_str)
"""
HASH = BOXED.replace("boxed{", "#### ")
TENTH = BOXED.replace("return float", "return 0.1 + float")


@pytest.fixture
def run(tmp_path, tiny_model, tiny_data, capfd):
    def main(code, *flags):
        (tmp_path / "mine.py").write_text(code)
        data = ["--train_data", tiny_data / "train.jsonl", "--val_data", tiny_data / "val.jsonl"]
        sizes = "--prompts_per_step 4 --group_size 4 --max_completion_tokens 4 --steps 2"
        what = ["--model", tiny_model, *data, "--sampler", "uniform", "--out", tmp_path / "run"]
        reward = ["--reward", tmp_path / "mine.py", "--verify_workers", 1]
        argv = [*what, *sizes.split(), "--max_prompt_tokens", 900, *reward, *flags]
        # Forked, as the end of its process frees a run's folder.
        status = on_ranks(1, tmp_path, lambda: train.main([str(word) for word in argv]))
        return status, capfd.readouterr().err

    return main, tmp_path / "run"


def test_it_grades_the_run_and_a_changed_file_is_another_run(run):
    main, folder = run
    assert main(HALF, "--steps", 1)[0] == 0
    # One worker: golds of right boxes are graded too, every other call earns 1.
    assert 0 < read_lines(folder / "metrics.jsonl")[1]["reward_mean"] < 1
    status, error = main(BOXED)
    assert status == 2
    assert error.startswith("error: --out") and "reward_crc32" in error


@pytest.mark.parametrize(
    ("code", "said"),
    [(TENTH, ("returned 0.1", "binary")), (HASH, (r"\boxed{", "does not earn 1, nor any other"))],
)
def test_what_is_no_reward_of_boxes_ends_the_run_with_a_line(run, code, said):
    main, _ = run
    status, error = main(code)
    assert status == 2
    lines = [line for line in error.splitlines() if line.startswith("error")]
    assert len(lines) == 1 and all(part in lines[0] for part in said)


@pytest.mark.parametrize(
    ("code", "flags", "said"),
    [
        (BOXED, ["--reward", "no/such.py"], "there is no file no/such.py"),
        ("", [], "has no class or function 'compute_score'"),
        ("1 / 0", [], "cannot be run: ZeroDivisionError"),
    ],
)
def test_a_file_that_is_none_is_one_line_before_anything_else(run, code, flags, said):
    main, folder = run
    status, error = main(code, *flags)
    assert (status, error.count("error:")) == (2, 1) and said in error
    assert not folder.exists()
