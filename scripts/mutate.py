r"""Are the tests able to fail? Puts one fault at a time into a copy of the tree and runs its test.

    python -m scripts.mutate [--only WORD] [-j JOBS]

Most faults below have been seen in well-known GRPO code. Prints a table; the exit status is 1 if a
fault survives that is not expected to, and 2 where a fault or its test no longer fits the code.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A fault is two lines: its name, file and tests (apart by |; a fourth part says why it may survive),
# then the old text, which the file has exactly once, and the new.
FAULTS = r"""
ddof 1 in the advantage | grpo.py | test_grpo.py::test_one_right_of_four
    correction=0 if std == "population" else 1 => correction=1
epsilon in the advantage | grpo.py | test_grpo.py::test_one_right_of_four
    centred_P_G / scale_P_1 => centred_P_G / (scale_P_1 + 1e-4)
a dead group is not exactly 0 | grpo.py | test_grpo.py::test_dead_groups_get_exactly_zero
    torch.where(dead_P_1, torch.zeros_like(centred_P_G), centred_P_G) => centred_P_G.nan_to_num()
dead rows stay in the denominators | grpo.py | test_ranks.py::test_micro_batches_and_dead_rows_do_not_change_the_gradient
    live.clamp(min=1) => len(advantage_P_G)
`grpo`: one mean over all tokens | grpo.py | test_grpo.py::test_row_weights_by_hand
    1 / (P * G * lengths) => torch.ones_like(lengths) / lengths.sum()
`dapo`: the batch's tokens, not the group's | grpo.py | test_grpo.py::test_row_weights_by_hand
    lengths.sum(dim=1, keepdim=True) => lengths.sum(dim=0, keepdim=True).sum() / P
`sum`: divided by the longest row | grpo.py | test_grpo.py::test_row_weights_by_hand
    torch.full_like(lengths, 1 / (P * G)) => torch.full_like(lengths, 1 / (P * G)) / lengths.max()
temperature dropped from log-probs | grpo.py | test_grpo.py::test_logprob_and_entropy_by_hand_at_temperature_one_half
    .div_(temperature) => .div_(1)
temperature dropped in backward | grpo.py | test_grpo.py::test_gradients_equal_finite_differences
    grad_z.div_(ctx.temperature) => grad_z
clip reversed for A < 0 | grpo.py | test_grpo.py::test_clipping_two_by_two
    torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N) => torch.minimum(ratio_N, clipped_N) * advantage_N
clip-higher ignored | grpo.py | test_grpo.py::test_clipping_two_by_two
    ratio_N.clamp(1 - clip_low, 1 + clip_high) => ratio_N.clamp(1 - clip_low, 1 + clip_low)
k1 KL as a loss | grpo.py | test_grpo.py::test_kl_by_hand_and_summed_without_weights_in_the_stats
    torch.exp(log_ratio_N) - log_ratio_N - 1 => -log_ratio_N
entropy lowered, not raised | grpo.py | test_grpo.py::test_a_step_on_the_entropy_term_raises_the_entropy_and_by_its_weight
    loss - entropy_coef * => loss + entropy_coef *
EOS masked | rollout.py | test_rollout.py::test_collate_by_hand
    t >= len(rollouts.prompt_ids[b]) => (t >= len(rollouts.prompt_ids[b])) & (t < t[-1])
pad = EOS masks every EOS | rollout.py | test_rollout.py::test_collate_by_hand
    response_B_T.to(device) => (response_B_T & (ids_B_T != pad_id)).to(device)
EOS left out of the completion | rollout.py | test_rollout.py::test_a_completion_ends_with_its_first_stop_token_or_is_cut_at_the_limit
    ids[:end], end is not None => ids[: end and end - 1], end is not None
only the first of several stop tokens | rollout.py | test_rollout.py::test_every_stop_token_of_the_checkpoint_and_the_tokenizers_own_end_a_completion
    *(eos if => *(eos[:1] if
a token from its own hidden state | rollout.py | test_rollout.py::test_eos_has_a_logprob_too
    hidden_B_T_D[:, :-1] => hidden_B_T_D[:, 1:]
positions count the padding | rollout.py | test_rollout.py::test_greedy_completions_do_not_depend_on_left_padding_or_neighbours
    cache.slot - pad, => cache.slot.expand_as(pad),
padding is attended to | rollout.py | test_rollout.py::test_greedy_completions_do_not_depend_on_left_padding_or_neighbours
    (slots >= pad) & (slots <= cache.slot) => slots <= cache.slot + 0 * pad
prompts padded on the right | rollout.py | test_rollout.py::test_left_pad_by_hand
    [pad_id] * (T - len(row)) + row => row + [pad_id] * (T - len(row))
sampled at 1, learned at 0.7 | rollout.py | test_rollout.py::test_sampled_tokens_and_logprobs_are_those_of_a_naive_loop_on_the_same_numbers
    {"temperature": temperature, => {"temperature": 1.0,
top-k left on | rollout.py | test_rollout.py::test_sampled_tokens_and_logprobs_are_those_of_a_naive_loop_on_the_same_numbers
    "top_k": 0 => "top_k": 50
repetition penalty left to the checkpoint | rollout.py | test_rollout.py::test_nothing_in_the_checkpoints_generation_settings_leaks_into_ours | the copy's own settings are blank already
    repetition_penalty=1.0, =>
a seed per batch, not per row | rollout.py | test_rollout.py::test_a_row_draws_the_same_tokens_whichever_rows_are_beside_it
    key=[seed, first_row + b] => key=[seed, list(rows).index(b)]
packed rows see each other | rollout.py | test_rollout.py::test_no_packed_row_sees_another
    ids_B_T, position_ids=position_1_T, use_cache=False => ids_B_T, use_cache=False
pooling counts padding | teacher.py | test_teacher.py::test_mean_pool_leaves_padding_out
    (hidden_B_T_D * mask_B_T_1).sum(dim=1) / mask_B_T_1.sum(dim=1) => hidden_B_T_D.mean(dim=1)
shuffled anew in each epoch | teacher.py | test_teacher.py
    losses = [self._step(batch) for batch in batches] => losses = [self._step([rows[i] for i in p]) for p in torch.randperm(len(rows)).split(size)]
an update for each sample, not each M | teacher.py | test_teacher.py::test_algorithm_2_triggers_inside_the_stream_and_carries_the_rest
    self.pushed % self.config.teacher_update_every == 0 => self.pushed >= self.config.teacher_update_every
teacher loss over a rank's own rows | teacher.py | test_ranks.py::test_teacher_batch_is_shared_out_over_its_ranks
    / len(batch) => / max(1, len(mine))
an idle teacher rank learns too | teacher.py | test_ranks.py::test_teacher_batch_is_shared_out_over_its_ranks
    * (len(mine) > 0) => * 1
teacher gradient averaged over ranks | teacher.py | test_ranks.py::test_teacher_batch_is_shared_out_over_its_ranks
    (loss * self.shares) => loss
the head computes in bf16 | teacher.py | test_teacher.py
    float32=[self.model.head] => float32=[]
LoRA merged without its scale | teacher.py | test_teacher.py::test_export_predicts_the_same_elsewhere
    LORA_ALPHA / LORA_RANK * B @ A => B @ A
target p(1-p), not its root | sampler.py | test_sampler.py::test_utility_target_by_hand
    np.sqrt(p_hat * (1 - p_hat)) => p_hat * (1 - p_hat)
drawn with replacement | sampler.py | test_sampler.py::test_goldilocks_takes_the_best_of_each_pool_and_never_twice
    if not self.revisits: => if self.revisits:
epsilon's branches swapped | sampler.py | test_sampler.py::test_epsilon_greedy_extremes_and_rate
    rng.random(N) < epsilon => rng.random(N) >= epsilon
the lowest utility is chosen | sampler.py | test_sampler.py::test_epsilon_greedy_extremes_and_rate
    utilities_N_K.argmax(axis=1)) => utilities_N_K.argmin(axis=1))
over-long prompts are not dropped | sampler.py | test_sampler.py::test_overlong_problems_are_counted
    if self.fits(int(self.order[last])): => if True:
noise floor of p, not of y | sampler.py | test_sampler.py::test_noise_floor_by_hand
    np.abs(utility_target(p) - utility_target(k / G)) => np.abs(p - k / G)
lag 1 learns before it answers | sampler.py | test_sampler.py::test_lag_fixes_what_each_proposal_has_learned
    if self.lag == 0: => if True:
rng not restored | sampler.py | test_sampler.py::test_state_dict_continues_bit_for_bit
    self.rng.bit_generator.state = state["rng"] => pass
loss not multiplied by the ranks | train.py | test_ranks.py::test_same_gradient_on_any_number_of_ranks
    (loss * n).backward() => loss.backward()
normaliser of a micro-batch | train.py | test_ranks.py::test_micro_batches_and_dead_rows_do_not_change_the_gradient
    weight_B[rows_N].to(logp_N) => torch.full_like(logp_N, 1 / len(rows_N))
normaliser of a rank's own rows | train.py | test_ranks.py::test_same_gradient_on_any_number_of_ranks
    weight_B[rows_N].to(logp_N) => weight_B[rows_N].to(logp_N) / sum(len(set(b[0].tolist())) for b in micro_batches)
metric of the last micro-batch only | train.py | test_ranks.py::test_same_gradient_on_any_number_of_ranks
    mine += torch.stack => mine = torch.stack
the generator keeps its old weights | train.py | test_train.py::test_one_process_leaves_what_the_design_promises
    self.generator.refresh(self.policy) => pass
NaN silently skipped | train.py | test_faults.py::test_a_gradient_that_is_not_finite_stops_before_the_update
    if not (norm.isfinite() and sums.isfinite().all()): => if False:
golds tiled, prompts repeated | train.py | test_train.py::test_one_process_leaves_what_the_design_promises
    [a for _, a in asked for _ in range(G)] => [a for _ in range(G) for _, a in asked]
checkpoints written under their final name | train.py | test_faults.py
    temporary = final.with_suffix(".tmp") => temporary = final
checkpoints not on disk before they count | train.py | test_faults.py
    sync(temporary / "sampler.pt") => pass
logs not cut on resume | train.py | test_train.py::test_four_ranks_repeat_and_resume_bit_for_bit
    if step and row["step"] <= step => if step
SIGTERM ignored | train.py | test_faults.py::test_sigterm_at_one_rank_stops_all_after_the_step_and_saves
    self.store.set("stop", "") => pass
the first box, not the last | verify.py | test_verify.py::test_extract_boxed
    start = max(( => start = min((
equality too generous | verify.py | test_verify.py::test_wrong_answers_and_guesses_are_not_paid
    if sizes and others and not sizes & others: => if False:
"""


@dataclass
class Fault:
    """One fault: what is wrong, where, and the tests that must notice."""

    name: str
    file: str
    tests: list[str]
    old: str
    new: str
    excuse: str = ""  # why it may survive


def faults() -> list[Fault]:
    """The faults of the table."""
    lines = FAULTS.strip("\n").splitlines()
    found = []
    for head, patch in zip(lines[::2], lines[1::2], strict=True):
        name, file, tests, *excuse = head.split(" | ")
        old, _, new = patch.partition(" =>")
        tests = [f"tests/{test}" for test in tests.split()]
        found.append(Fault(name, file, tests, old.strip(), new.strip(), *excuse))
    return found


def run(tests: list[str], fault: Fault | None = None) -> int:
    """pytest's exit status in a copy of the tree with the fault: 0 all passed, 1 a test failed."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        for name in names.decode().splitlines():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, Path(folder) / name)
        if fault:
            path = Path(folder) / fault.file
            path.write_text(path.read_text().replace(fault.old, fault.new))
        line = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
        return subprocess.run(line, cwd=folder, capture_output=True, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name or file has this in it")
    parser.add_argument("-j", type=int, default=1, help="how many to try at a time")
    options = parser.parse_args()
    chosen = [f for f in faults() if options.only in f.name or options.only in f.file]
    for fault in chosen:
        if (count := (ROOT / fault.file).read_text().count(fault.old)) != 1:
            print(f"{fault.name}: {fault.file} has {fault.old!r} {count} times", file=sys.stderr)
            return 2
    if run(sorted({test for fault in chosen for test in fault.tests})):
        print("the tests fail, or are not there, without any fault", file=sys.stderr)
        return 2
    print("| fault | test | |\n|---|---|---|")
    unexpected = 0
    with ThreadPoolExecutor(options.j) as pool:
        codes = pool.map(lambda fault: run(fault.tests, fault), chosen)
        for fault, code in zip(chosen, codes, strict=True):
            verdict = {0: "SURVIVED", 1: "caught"}.get(code, f"pytest's exit status {code}")
            if code == 0 and fault.excuse:
                verdict = f"survives, as expected: {fault.excuse}"
            unexpected += code != 1 and not verdict.startswith("survives")
            tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in fault.tests)
            print(f"| {fault.name} | {tests} | {verdict} |", flush=True)
    return min(1, unexpected)


if __name__ == "__main__":
    sys.exit(main())
