#!/bin/bash
# Run train.py on several machines; before the time limit save, requeue and resume. docs/clusters.md explains the rest.
#     sbatch docs/slurm.sh --preset qwen2.5-1.5b       (in the folder of train.py; the arguments are its flags)
#SBATCH --job-name=goldilocks
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
ranks=${RANKS_A_NODE:-$SLURM_GPUS_ON_NODE}
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=480  # seconds to finish the step and to save

stopped=
stop() {
    stopped=yes
    scancel --signal=TERM "$SLURM_JOB_ID"
}
trap stop USR1
trap : TERM  # Slurm has signalled the ranks too; if this is a preemption, it requeues the job itself

# srun runs in the background: a shell runs no trap while a command is in its foreground.
# --kill-on-bad-exit=1: when the torchrun of one machine fails, all end.
# $SLURM_NODEID differs between nodes, so it must not be expanded here.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' agent \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$ranks" --master_addr "$host" --master_port "$port" \
    train.py "$@" &

# A signal interrupts `wait`, but not srun: wait again.
while wait $!; kill -0 $! 2>/dev/null; do :; done
wait $!; status=$?

# torchrun exits with 1 after a signal (its ranks with 143) and after an error: only `stopped` tells.
if [ "$stopped" ] && [ "$status" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
