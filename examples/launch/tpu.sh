#!/bin/bash
# A run over all hosts of a TPU slice, started from your machine:
#   TPU=my-slice ZONE=us-central2-b RUN=/mnt/runs/hopper examples/launch/tpu.sh
# The same command starts the run and resumes it. To stop it with a checkpoint, signal one host:
#   gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=0 --command "pkill -TERM -x rookery"
#
# Every host needs the same versions of Rookery and jax[tpu], and RUN on a file system that all hosts mount at the same
# path: a POSIX path, not gs://. NFS, such as Filestore, is the safer choice. A bucket mounted by gcsfuse has no locks
# between hosts, so two runs that write to the same directory are not detected; and it renames directories atomically,
# which checkpoints need, only with a hierarchical namespace.
set -euo pipefail

TPU=${TPU:?the name of the TPU slice}
ZONE=${ZONE:?the zone of the slice}
RUN=${RUN:-/mnt/runs/hopper}

# JAX detects the other hosts. The run ends if this command ends: start it where it is not closed with your terminal.
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=all --command "
    if [ -e $RUN/config.json ]; then # the run exists, with or without a checkpoint
        exec rookery resume $RUN --distributed
    else
        exec rookery train pbt-sac --env hopper --population 32 --generations 200 --run-dir $RUN --distributed
    fi"
