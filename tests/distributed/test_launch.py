"""The scripts that start a run on a cluster, with substitutes for the commands of the cluster."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from rookery.cli import app
from rookery.islands import plan

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
RECORD = '#!/bin/bash\nprintf "%q " "$(basename "$0")" "$@" >> "$CALLS"\necho >> "$CALLS"\n'


class Cluster:
    """A folder of commands that record their calls; `srun` exits with the given codes, one after the other."""

    def __init__(self, folder: Path):
        self.run, self.calls, self._codes = folder / "my run", folder / "calls", folder / "codes"
        self._commands = folder / "commands"
        self._commands.mkdir()
        ends = 'code=$(head -1 "$CODES"); sed -i 1d "$CODES"; exit "${code:-0}"'
        for name in ("rookery", "scontrol", "srun", "getent"):
            self.make(name, RECORD + (ends if name == "srun" else ""))

    def make(self, name: str, text: str) -> None:
        (self._commands / name).write_text(text)
        (self._commands / name).chmod(0o755)

    def has_run(self) -> None:
        self.run.mkdir(exist_ok=True)
        (self.run / "config.json").touch()

    def start(self, *command: str, codes: tuple[int, ...] = (), **variables: str) -> tuple[int, list[list[str]]]:
        """The exit code, and all calls of the substitutes."""
        self._codes.write_text("".join(f"{code}\n" for code in codes))
        self.calls.write_text("")
        where = {"PATH": f"{self._commands}:{os.environ['PATH']}", "CALLS": str(self.calls), "CODES": str(self._codes)}
        given = where | {"RUN": str(self.run), "HOME": str(self.run.parent)} | variables
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=20, check=False)
        assert done.stderr == ""
        return done.returncode, [shlex.split(line) for line in self.calls.read_text().splitlines()]


@pytest.fixture
def cluster(tmp_path) -> Cluster:
    return Cluster(tmp_path)


def parse_call(call: list[str], run: Path) -> str:
    """Parse a call of `rookery` with several processes and this run directory; return its command."""
    assert call[0] == "rookery"
    command = app.parse(call[1:])
    assert command.processes.wanted
    place = command.run if isinstance(command, app.Resume) else command.spec.run.run_dir
    assert str(place) == str(run)
    if isinstance(command, app.Train):
        assert command.spec.method.population % 16 == 0, "the devices of the examples divide it"
    return "resume" if isinstance(command, app.Resume) else "train"


def test_the_scripts_are_bash():
    for path in sorted(LAUNCH.glob("*.sh")):
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)
        assert os.access(path, os.X_OK), f"{path.name} cannot be started"


class TestSlurm:
    """examples/launch/slurm.sh."""

    def start(self, cluster: Cluster, *codes: int) -> tuple[int, list[str], list[list[str]]]:
        code, calls = cluster.start("bash", str(LAUNCH / "slurm.sh"), codes=codes, SLURM_JOB_ID="42")
        steps = [call[call.index("rookery") :] for call in calls if call[0] == "srun"]
        return code, [parse_call(step, cluster.run) for step in steps], [call for call in calls if call[0] != "srun"]

    def test_a_run_is_trained_or_resumed_requeued_at_its_time_limit_and_errors_are_not_retried(self, cluster):
        assert self.start(cluster) == (0, ["train"], [])
        assert self.start(cluster, 143) == (143, ["train"], [["scontrol", "requeue", "42"]])
        for code in (1, 2, 74, 130):
            assert self.start(cluster, code) == (code, ["train"], [])
        cluster.has_run()
        assert self.start(cluster) == (0, ["resume"], [])

    @pytest.mark.parametrize("code", [75, 134, 137])
    def test_after_a_lost_process_the_run_is_restarted(self, cluster, code):
        cluster.has_run()
        assert self.start(cluster, code, 0) == (0, ["resume", "resume"], [])
        assert self.start(cluster, code, code, code, 0) == (code, ["resume"] * 3, [])

    def test_every_gpu_has_a_task_and_every_task_has_time_to_save(self):
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", (LAUNCH / "slurm.sh").read_text(), re.M))
        assert options["gres"] == f"gpu:{options['ntasks-per-node']}"
        assert options["signal"].startswith("TERM@"), "with B: it would reach the script instead of the run"


class TestIslands:
    """examples/launch/slurm_islands.sh and ray_cluster.yaml."""

    @pytest.mark.parametrize("command", ["train", "resume"])
    def test_one_task_per_node_starts_ray_and_the_first_one_the_run(self, cluster, command):
        if command == "resume":
            cluster.has_run()
        cluster.make("scontrol", "#!/bin/bash\necho node7; echo node8\n")
        variables = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "ISLANDS": "16"}
        code, calls = cluster.start("bash", str(LAUNCH / "slurm_islands.sh"), **variables)
        assert code == 0
        (call,) = calls
        step = call[: call.index("--")]
        assert step[:4] == ["srun", "--kill-on-bad-exit=0", "ray", "symmetric-run"]
        assert step[4:8] == ["--address", "node7:6379", "--min-nodes", "2"]
        assert "--include-dashboard=false" in step
        parsed = app.parse(call[call.index("rookery") + 1 :])
        assert parsed.processes.ray_address == "auto"
        if isinstance(parsed, app.Train):
            assert parsed.spec.method.islands.islands == 16
            plan.check(parsed.spec)
            assert str(parsed.spec.run.run_dir) == str(cluster.run)
        else:
            assert (command, parsed.run) == ("resume", cluster.run)

    def test_a_cluster_without_a_dashboard(self):
        cluster = yaml.safe_load((LAUNCH / "ray_cluster.yaml").read_text())
        assert cluster["min_workers"] == cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
        start = cluster["head_start_ray_commands"][-1]
        assert start.startswith("ray start --head")
        assert "--include-dashboard=false" in start
        text = (LAUNCH / "ray_cluster.yaml").read_text()
        command = re.search(r'"(rookery train [^"]*)"', text)
        assert command is not None
        words = shlex.split(command[1].replace("\\\n#", ""))
        plan.check(app.parse(words[1:]).spec)


class TestKubernetes:
    """examples/launch/kubernetes.yaml."""

    @pytest.fixture
    def job(self) -> dict:
        return yaml.safe_load((LAUNCH / "kubernetes.yaml").read_text())

    def pods(self, job: dict) -> dict:
        (workers,) = job["spec"]["replicatedJobs"]
        return workers["template"]["spec"]

    def test_all_pods_are_restarted_together(self, job):
        assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
        assert job["spec"]["failurePolicy"]["maxRestarts"] > 0
        pods = self.pods(job)
        assert (pods["completionMode"], pods["backoffLimit"]) == ("Indexed", 0)
        assert pods["template"]["spec"]["restartPolicy"] == "Never"

    def start(self, job: dict, cluster: Cluster, index: int) -> list[list[str]]:
        (container,) = self.pods(job)["template"]["spec"]["containers"]
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        given |= {"JOBSET_NAME": job["metadata"]["name"], "JOB_COMPLETION_INDEX": str(index), "RUN": str(cluster.run)}
        code, calls = cluster.start(*container["command"], *container["args"], **given)
        assert code == 0
        return calls

    @pytest.mark.parametrize("command", ["train", "resume"])
    def test_every_pod_finds_process_0_by_its_name(self, job, cluster, command):
        if command == "resume":
            cluster.has_run()
        pods = self.pods(job)
        lookup, call = self.start(job, cluster, index=1)
        assert parse_call(call, cluster.run) == command
        found = app.parse(call[1:]).processes
        name = job["metadata"]["name"]
        (port,) = pods["template"]["spec"]["containers"][0]["ports"]
        host = f"{name}-{job['spec']['replicatedJobs'][0]['name']}-0-0.{name}"
        assert lookup == ["getent", "hosts", host]
        assert found.coordinator == f"{host}:{port['containerPort']}"
        assert found.num_processes == pods["completions"] == pods["parallelism"]
        assert found.process_id == 1

    def test_mounted_volumes_are_declared(self, job):
        pod = self.pods(job)["template"]["spec"]
        mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
        (run,) = [one["value"] for one in pod["containers"][0]["env"] if one["name"] == "RUN"]
        assert run.startswith(mounted["runs"] + "/")


class TestTpu:
    """examples/launch/tpu.sh."""

    @pytest.mark.parametrize("command", ["train", "resume"])
    def test_every_host_runs_the_same_command(self, cluster, command):
        cluster.run = cluster.run.with_name("run")  # the words pass through two shells
        if command == "resume":
            cluster.has_run()
        cluster.make("gcloud", RECORD + 'exec bash -c "${@: -1}"\n')
        code, (gcloud, call) = cluster.start(str(LAUNCH / "tpu.sh"), TPU="slice", ZONE="here")
        assert code == 0
        assert gcloud[:9] == "gcloud compute tpus tpu-vm ssh slice --zone here --worker=all".split()
        assert parse_call(call, cluster.run) == command
