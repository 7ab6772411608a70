"""Put one fault at a time into a copy of the tree, and run the test that must fail.

    python -m tests.stress.mutation [--only WORD]

Most of the faults have been seen in well-known GRPO code. Prints a table. The exit status is 1 if a
fault survives, and 2 if a fault or its test no longer fits the code.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from plumbing.errors import InputError
from scripts.command import exit_on_error, make_parser
from tests.helpers.models import ROOT

# A fault is two lines: name | file | test, then the old text, which the file has exactly once, and
# the new one. grpo::x is the test of test_grpo.py whose name begins with test_x.
FAULTS = r"""
ddof 1 in the advantage | grpo.py | grpo::one_or_two_right_of_four
    correction = 0 if std == "population" else 1 => correction = 1
epsilon in the advantage | grpo.py | grpo::one_or_two_right_of_four
    advantage_P_G / std_P_1 => advantage_P_G / (std_P_1 + 1e-4)
a dead group is not exactly 0 | grpo.py | grpo::dead_groups_get_exactly_zero
    advantage_P_G.masked_fill(dead_P_1, 0) => advantage_P_G.nan_to_num()
dead rows stay in the denominators | grpo.py | grpo::weigh_two_groups
    if dead_rows == "out": => if False:
`grpo`: one mean over all tokens | grpo.py | grpo::row_weights_by_hand
    "grpo": P * G * lengths, => "grpo": lengths.sum(),
a group's tokens, not the batch's | grpo.py | grpo::weigh_two_groups
    sum(length(o) for group in groups for => sum(length(o) for group in groups[:1] for
truncated rows stay in the loss | grpo.py | grpo::weigh_two_groups
    return 0 if truncated_rows == "out" and not o.finished else => return
a bad reference answer earns | train.py | train::a_rollout_draws_a_graded_completion
    if is_valid[index] else 0.0 =>
temperature dropped from log-probs | grpo.py | grpo::logprob_and_entropy_by_hand
    .div_(temperature) =>
clip reversed for A < 0 | grpo.py | grpo::clipping_by_sign_and_side
    unclipped_N.minimum(clipped_N * advantage_N) => ratio_N.minimum(clipped_N) * advantage_N
k1 KL as a loss | grpo.py | grpo::kl_and_entropy_by_hand
    log_ratio_N.exp() - log_ratio_N - 1 => -log_ratio_N
entropy lowered, not raised | grpo.py | grpo::kl_and_entropy_by_hand
    loss - entropy_coef * => loss + entropy_coef *
EOS masked | plumbing/batches.py | batches::a_completion_is_predicted_from
    [*chain(*ids_B)] => [*chain(*([*ids[:-1], 0] for ids in ids_B))]
it sees later tokens | plumbing/shared_prompts.py | rollout::computing_a_groups_prompt
    .tril() =>
the padding of a prompt is seen | plumbing/shared_prompts.py | batches::a_completion_sees
    prompts.is_token[prompt_B] => torch.ones_like(prompts.is_token)[prompt_B]
positions of completions begin at 0 | plumbing/batches.py | batches::positions_of_a_completion
    add(completion.ids, len(prompt)) => add(completion.ids, 0)
EOS left out of the completion | rollout.py | rollout::sampling_equals_a_naive_loop
    Completion(ids[:end], => Completion(ids[: end and end - 1],
a token's own hidden state | rollout.py | invariance::gradient_is_that_of_the_plain_formula
    hidden_1_T_D[0][batch.source_N] => hidden_1_T_D[0][batch.source_N + 1]
positions count the padding | plumbing/decoding/cache.py | rollout::sampling_equals_a_naive_loop
    self.slot - self.first_B => self.slot + 0 * self.first_B
top-k left on | rollout.py | rollout::sampling_equals_a_naive_loop
    "top_k": 0 => "top_k": 50
a seed per batch, not per row | rollout.py | rollout::a_row_draws_the_same_tokens_in_any_batch
    [[seed, first_row + row] for row in part] => [[seed, i] for i, _ in enumerate(part)]
any text for a problem | plumbing/decoding/chat.py | rollout::a_chat_template_that_loses_or_changes
    if not kept: => if False:
an answer without its end | rollout.py | rollout::the_token_that_ends_an_answer
    {end_of_turn(self.tokenizer, [*ids])} => {None}
thinking that the prompt opens | train.py | train::thinking_is_graded_alike
    mark[index] + =>
a cap of the logits | rollout.py | models::a_cap_that_hardly_changes_small
    check_head(name, lm, prompts[-1]) => pass
noise in recomputed layers | plumbing/models.py | models::activation_checkpointing_adds_no_noise
    getattr(module, "gradient_checkpointing", False) => True
a quantised checkpoint | plumbing/model_checks.py | models::what_a_run_would_not_notice
    check_precision(config) => pass
packed rows see each other | rollout.py | rollout::packing_and_padding_change_no_gradient
    position_ids=batch.position_1_T, =>
pooling counts padding | teacher.py | teacher::pooling_leaves_padding_out
    / mask_B_T_1.sum(dim=1) => / mask_B_T_1.shape[1]
shuffled anew in each epoch | teacher.py | teacher::algorithm_2_shuffles_once_an_update
    for batch in batches: => for batch in map(batches.__getitem__, torch.randperm(len(batches))):
an update for each sample | teacher.py | teacher::algorithm_2_updates_every_fourth_outcome
    if self.pushed % c.teacher_update_every: => if False:
an idle rank predicts too | teacher.py | invariance::same_teacher_predictions_on_any_ranks
    if not idle: => if True:
one order for all seeds | teacher.py | teacher::each_update_and_seed_shuffles
    c.seed * 1_000_003 + self.pushed => self.pushed
no dropout in LoRA | teacher.py | teacher::dropout_is_active_while_lora_learns
    set_dropout(self.model, True) => set_dropout(self.model, False)
LoRA's A without the seed | teacher.py | teacher::lora_begins_from_the_seed
    torch.manual_seed(self.config.seed) => pass
a frozen teacher's own rows | teacher.py | invariance::same_teacher_gradient_on_any_ranks
    own, idle = batch, False => own, idle = self._own(batch)
loss over a teacher's own rows | teacher.py | invariance::same_teacher_gradient_on_any_ranks
    ((f_b - y_b) ** 2).sum() / len(batch) => ((f_b - y_b) ** 2).sum() / len(own)
updates go on | teacher.py | teacher::no_weight_changes_from_a_non_finite_gradient_on
    if not math.isfinite(norm): => if False:
the head computes in bf16 | teacher.py | teacher::the_head_computes_in_float32
    float32=[self.model.head] => float32=[]
LoRA merged without its scale | plumbing/lora.py | teacher::an_exported_teacher_predicts_the_same
    layer.scale * B => B
y is p(1-p), not its root | grpo.py | grpo::p_hat_and_y_of_a_group
    max(variance, 0.0) ** 0.5 => max(variance, 0.0)
the std of 0s and 1s for all rewards | grpo.py | grpo::p_hat_and_y_of_a_group
    for r in self.rewards) => for r in [0])
the target of the mean reward | sampler.py | sampler::goldilocks_teaches_the_std
    self.target(group.binary_p_hat) => self.target(group.p_hat)
target p(1-p), not its root | grpo.py | sampler::goldilocks_teaches_the_factor
    else variance**0.5 => else variance
drawn again | sampler.py | sampler::draws_are_distinct_unseen_and_fit
    self.status[drawn] = self.DRAWN => pass
rejected candidates return | sampler.py | sampler::a_candidate_that_is_not_chosen_returns
    groups.append(group) => groups.append(group); self.status[pool[1:]] = self.LEFT
epsilon's branches swapped | sampler.py | sampler::epsilon_greedy_by_hand
    rng.random(P) < epsilon => rng.random(P) >= epsilon
K is fitted to chosen groups | sampler.py | samplers::candidates_auto_by_hand
    [group for group in groups if group.explored] => groups
the target of the default advantages | sampler.py | sampler::goldilocks_teaches_the_factor
    p_hat, self.context.config.advantage_std => p_hat
noise floor of p, not of y | grpo.py | grpo::noise_floor_by_hand
    abs(f - group_factor(p_hat)) => abs(p - p_hat)
lag ignored | teacher.py | channel::with_lag_0_it_learns
    self.lag = lag => self.lag = 0
pending proposals forgotten | teacher.py | channel::a_resume_uses_the_proposals
    self.proposals = state["proposals"] => pass
a signal at a teacher stays there | plumbing/distributed/channel.py | channel::over_a_channel
    self.layout.stopping |= stop => pass
a resume overwrites settings | sampler.py | sampler::a_setting_is_state_only_if
    and not is_setting =>
scores of any size | sampler.py | plugins::scores_must_be_a_utility
    (utilities <= 0.5) => (utilities <= 9)
rng not restored | sampler.py | samplers::every_sampler_resumes_bit_for_bit
    vars(self).update(state) => vars(self).update(state | {"rng": self.rng})
the gap with its sign changed | train.py | update::a_token_that_the_policy_finds_twice_as_likely
    batch.old_logp_N - batch.generator_logp_N => batch.generator_logp_N - batch.old_logp_N
old log-probs anew in each update | train.py | update::two_updates_compare_with
    if first: => if True:
clip_high below 1, too | train.py | update::ratios_are_clipped_at_1_minus_clip_low
    clip_low=c.clip_low, => clip_low=c.clip_high,
the reference is the policy | train.py | update::the_kl_estimate_compares_the_policy_with_the
    self.reference(batch, c.temperature)[0] => logp_N.detach()
gradients never clipped | train.py | update::an_update_moves_the_weights
    max_norm = c.max_grad_norm or math.inf => max_norm = math.inf
the schedule is logged alone | train.py | update::an_update_moves_the_weights
    self.optimizer.param_groups[0]["lr"] = rate => pass
AdamW's usual weight decay | train.py | update::an_update_trains_the_policy
    weight_decay=0.0, =>
bf16 sees no small step | plumbing/distributed/layout.py | invariance::weights_that_bf16_can_hold
    dither(model) => pass
weights of an earlier forward | rollout.py | invariance::refresh_copies_the_weights_of_an_update
    module.reshard()  # weights => pass  # weights
loss not multiplied by the ranks | train.py | invariance::same_gradient_on_any_ranks
    loss * self.layout.n_students => loss
a normaliser a micro-batch | plumbing/batches.py | invariance::same_gradient_in_any_batches
    [completion.weight for => [1 / len(rows) for
metric of the last micro-batch only | train.py | invariance::same_gradient_on_any_ranks
    sums[name] += => sums[name] =
a problem of two groups counts twice | train.py | train::the_metrics_of_a_step
    step_metrics(whole, => step_metrics(groups,
the latest group of a problem alone | sampler.py | sampler::join_merges
    whole.completions += group.completions => whole.completions = group.completions
any groups are trained on | train.py | train::a_completion_cannot_be_trained_on_twice
    check_trained(trained, groups) => pass
an evaluation draws as training does | train.py | train::a_rollout_draws_at_its_own_temperature_and
    self.layout.share(group_B) => self.layout.share(group_B); temperature = c.temperature
rounds share a random stream | train.py | train::rollouts_of_other_steps_rounds_and_runs
    [c.seed, 2, *stream] => [c.seed, 2, *stream[:2]]
old student | scripts/evaluate.py | evaluate::a_runs_newest_checkpoint_has_the_runs_verdicts
    checkpoint.load_weights(weights, actor.generator.lm) => pass
NaN skipped | train.py | invariance::a_number_that_is_not_finite_stops_before_the_update
    math.isfinite(x) for x in => True for x in
the rate of the checkpoint | plumbing/run/checkpoint.py | checkpoint::loaded_optimizers_keep
    trained.optimizer.param_groups[0]["lr"] = rate => pass
state for gradients alone | plumbing/run/checkpoint.py | checkpoint::parameters_without_a_gradient
    if p not in optimizer.state: => if False:
half a checkpoint | plumbing/run/checkpoint.py | faults::resume_after_a_kill_damage_and_a_torn_log
    temporary = final.with_suffix(".tmp") => temporary = final
logs not cut on resume | plumbing/run/directory.py | run_dir::a_resume_drops_later_rows_and_steps
    [row for row in rows if row["step"] <= last] => rows
a resume under any code | plumbing/run/directory.py | run_dir::a_run_resumes_under_changed_code
    if changed and not self.config.allow_code_change: => if False:
a sampler's parent is no code | plumbing/run/code.py | code::the_parents_of_a_sampler
    left += imports(file, folders) => pass
SIGTERM ignored | plumbing/distributed/shutdown.py | faults::ctrl_c_during_an_evaluation
    layout.stopping = True => pass
the first box, not the last | verify.py | verify::extract_boxed_returns_the_last_box_if_it_is_closed
    start = box.end() => start = min(start, box.end())
limits of time and memory dropped | verify.py | verify::the_workers_get_the_limits
    [str(cpu_seconds), str(memory_bytes), reward] => ["3", str(2**30), reward]
units ignored | grading/equality.py | verify::right_answers_earn_1_and_wrong_ones_0
    if len(units - {""}) > 1: => if False:
a copied question earns 1 | grading/equality.py | verify::right_answers_earn_1_and_wrong_ones_0
    is_evaluated(gold_value) and not is_evaluated(value) => False
points of 18 at most | grading/values.py | verify::right_answers_earn_1_and_wrong_ones_0
    points = [*screening, *large, *points] => points = [*screening, *points]
an or that is free | grading/structure.py | verify::right_answers_earn_1_and_wrong_ones_0
    return Structure("∨", parts) => return Structure("list", parts)
"""
FAULT = r"(.+) \| (.+) \| (.+)\n    (.+?) => ?(.*)"


def faults(word: str) -> list[tuple[str, ...]]:
    """Return name, file, test, old text and new text of the faults with the word in one of the
    first three. Raises InputError where the old text is not in the file exactly once, or the name
    is not that of one test."""
    chosen = []
    for name, file, test, old, new in re.findall(FAULT, FAULTS):
        if (count := (ROOT / file).read_text().count(old)) != 1:
            raise InputError(f"{name}: {file} has {old!r} {count} times")
        test = full_name(test)
        if any(word in part for part in (name, file, test)):
            chosen.append((name, file, test, old, new))
    return chosen


def full_name(test: str) -> str:
    """Return file::function of the test that is called module::beginning in FAULTS."""
    module, _, beginning = test.partition("::")
    [path] = ROOT.glob(f"tests/*/test_{module}.py")
    names = re.findall(rf"^def (test_{beginning}\w*)\(", path.read_text(), re.MULTILINE)
    if len(names) != 1:
        raise InputError(f"{test}: {path.relative_to(ROOT)} has {names or 'no such test'}")
    return f"{path.relative_to(ROOT)}::{names[0]}"


def fails(tree: Path, *tests: str) -> bool:
    """Return whether one of the tests fails. Raises InputError where there is no such test."""
    options = ["-o", "addopts=--import-mode=importlib", "-qx", "-p", "no:cacheprovider"]
    line = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    status = subprocess.run(line, cwd=tree, capture_output=True, check=False).returncode
    if status > 1:
        raise InputError(f"pytest's exit status is {status}: {' '.join(tests)}")
    return status == 1


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="only faults with this in name, file or test")
    survivors = 0
    with exit_on_error("mutation"), tempfile.TemporaryDirectory() as folder:
        word = parser.parse_args().only
        tree = Path(folder)
        chosen = faults(word)
        if not chosen:
            raise InputError(f"--only {word}: in no fault's name, file or test")
        copy = "git ls-files -zco --exclude-standard | xargs -0 cp -P --parents -t"
        subprocess.run(f"{copy} {folder}", shell=True, cwd=ROOT, check=True)
        if fails(tree, *sorted({test for _, _, test, _, _ in chosen})):
            raise InputError("a test fails without any fault")
        print("| fault | caught by | |\n|---|---|---|")
        for name, file, test, old, new in chosen:
            text = (tree / file).read_text()
            (tree / file).write_text(text.replace(old, new))
            caught = fails(tree, test)
            (tree / file).write_text(text)
            survivors += not caught
            print(f"| {name} | `{test}` | {'caught' if caught else 'SURVIVED'} |", flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
