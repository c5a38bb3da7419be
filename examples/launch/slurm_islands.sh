#!/bin/bash
# A run of islands over several nodes with Slurm: one task per node starts Ray there, and the first one starts the run.
#   RUN=/shared/runs/hopper sbatch examples/launch/slurm_islands.sh
# Nodes may differ, and a node that is lost stops only its islands. They continue when a node with their share is free, at
# the latest when the job is submitted again or restarted by Slurm: the run continues from its newest checkpoints.
#
#SBATCH --job-name=rookery-islands
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# Two minutes before the time limit the tasks receive SIGTERM, and the islands save.
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

RUN=${RUN:-$HOME/runs/hopper} # on a file system that all nodes share
ISLANDS=${ISLANDS:-32} # one for each GPU; more share GPUs
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit it from sbatch
export RAY_USAGE_STATS_ENABLED=0
# source "$HOME/rookery/.venv/bin/activate"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [ -e "$RUN/config.json" ]; then # the run exists, with or without a checkpoint
    command=(rookery resume "$RUN" --ray-address auto)
else
    command=(rookery train pbt-sac --env hopper --population 1024 --islands "$ISLANDS" --generations 200
        --run-dir "$RUN" --ray-address auto)
fi
# Ray listens on the network of the nodes: use one that no other users can reach.
exec srun --kill-on-bad-exit=0 ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_NNODES" \
    --include-dashboard=false -- "${command[@]}"
