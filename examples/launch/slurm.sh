#!/bin/bash
# A run over several nodes with Slurm, one task per GPU:
#   RUN=/shared/runs/hopper sbatch examples/launch/slurm.sh
# If it is submitted again, or restarted by Slurm, the run continues from its newest checkpoint.
#
#SBATCH --job-name=rookery
#SBATCH --nodes=2
# JAX assigns to each task the GPU with the number of its SLURM_LOCALID: the number of tasks must equal the number of
# GPUs, and all GPUs of a node must be visible to each task. Do not use --gpus-per-task or --gpu-bind, which hide GPUs.
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# Two minutes before the time limit the tasks (not this script) receive SIGTERM: they finish the generation, save a
# checkpoint and exit with 143. The time must be enough for a generation and its checkpoint.
#SBATCH --signal=TERM@120
# After a node failure or preemption Slurm restarts the job; the output is appended to the same file.
#SBATCH --requeue
#SBATCH --open-mode=append

RUN=${RUN:-$HOME/runs/hopper} # on a file system that all nodes share
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit it from sbatch
# source "$HOME/rookery/.venv/bin/activate"

for attempt in 1 2 3; do
    if [ -e "$RUN/config.json" ]; then # the run exists, with or without a checkpoint
        command=(rookery resume "$RUN")
    else
        command=(rookery train pbt-sac --env hopper --population 32 --generations 200 --run-dir "$RUN")
    fi
    # A process that loses the connection to another one exits by itself with a message, so Slurm need not kill it.
    srun --kill-on-bad-exit=0 "${command[@]}" --distributed
    code=$? # the highest exit code of all tasks; 75 if a process was lost
    case $code in
        75 | 134 | 137) echo "attempt $attempt of 3 lost a process (exit code $code)" ;;
        *) break ;;
    esac
done

if [ "$code" -eq 143 ]; then # the time limit was reached, and a checkpoint is saved
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
