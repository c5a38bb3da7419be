#!/bin/bash
# A run over all hosts of a TPU slice, from your own machine:
#   TPU=my-slice ZONE=us-central2-b RUN=/mnt/runs/hopper examples/launch/tpu.sh
# The same command starts it and goes on with it. To stop and save, one host is enough:
#   gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=0 --command "pkill -TERM -x rookery"
#
# Every host needs Rookery and jax[tpu] of the same versions, and RUN on a file system that all of them have mounted at
# one path: a POSIX path, not gs://. NFS, such as Filestore, is the safer choice. A bucket mounted by gcsfuse has no
# locks between hosts, so two runs that write to one folder do not notice each other; and it renames folders
# atomically, which checkpoints need, only with a hierarchical namespace.
set -euo pipefail

TPU=${TPU:?the name of the TPU slice}
ZONE=${ZONE:?the zone of the slice}
RUN=${RUN:-/mnt/runs/hopper}

# JAX finds the other hosts by itself. The command lives as long as this one: start it where it outlives your terminal.
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=all --command "
    if [ -e $RUN/config.json ]; then # a run is here, whether it has a checkpoint or not
        exec rookery resume $RUN --distributed
    else
        exec rookery train pbt-sac --env hopper --population 32 --generations 200 --run-dir $RUN --distributed
    fi"
