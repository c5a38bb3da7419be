#!/bin/bash
# A run over several nodes under Slurm, a task for each GPU:
#   RUN=/shared/runs/hopper sbatch examples/launch/slurm.sh
# Submitted again, or started again by Slurm, it goes on where the run stands.
#
#SBATCH --job-name=rookery
#SBATCH --nodes=2
# JAX gives each task the GPU with the number of its SLURM_LOCALID: as many tasks as GPUs, and every task has to see all
# GPUs of its node. So no --gpus-per-task and no --gpu-bind, which hide the others.
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# Two minutes before the limit the tasks get SIGTERM (this script does not): they finish their generation, save it and
# exit with 143. A generation and its save have to fit into that time.
#SBATCH --signal=TERM@120
# After a node failed, or the job was preempted, Slurm starts it again; the output goes on in the same file.
#SBATCH --requeue
#SBATCH --open-mode=append

RUN=${RUN:-$HOME/runs/hopper} # on a file system that all nodes see
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take it over from sbatch
# source "$HOME/rookery/.venv/bin/activate"

for attempt in 1 2 3; do
    if [ -e "$RUN/config.json" ]; then # a run is here, whether it has a checkpoint or not
        command=(rookery resume "$RUN")
    else
        command=(rookery train pbt-sac --env hopper --population 32 --generations 200 --run-dir "$RUN")
    fi
    # Whoever loses another process stops by itself, and says why: Slurm need not kill it.
    srun --kill-on-bad-exit=0 "${command[@]}" --distributed
    code=$? # the highest of all tasks; 75 only where one was lost
    case $code in
        75 | 134 | 137) echo "attempt $attempt of 3 lost a process (exit code $code)" ;;
        *) break ;;
    esac
done

if [ "$code" -eq 143 ]; then # the time was over, and the run is saved
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
