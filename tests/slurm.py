"""A folder → a running Slurm of two nodes on this machine, for tests of batch jobs.

``munged``, ``slurmctld`` and one ``slurmd`` a node are started as children of this process, on
free ports of the loopback, with their configuration, keys, sockets, spools and logs in one folder.
They end with the test. Debian's packages: slurmctld, slurmd, slurm-client, munge, libpmix-dev.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = 2
CPUS_A_NODE = 4

CONFIGURATION = """\
ClusterName=mpisim
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
KillWait=5
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""
NODE = "NodeName=node{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"


def daemon(name: str) -> str | None:
    """Return the path of a daemon, which is seldom on a user's ``PATH``; None if not installed."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def absent() -> list[str]:
    """Return the programs of Slurm that this machine does not have."""
    absent = [name for name in DAEMONS if daemon(name) is None]
    return absent + [name for name in ("sbatch", "srun", "sinfo") if shutil.which(name) is None]


@dataclass
class Job:
    """A batch job that has ended.

    Attributes
    ----------
    state : str
        Slurm's word: COMPLETED, FAILED, CANCELLED …
    code : int
        The exit code of the script.
    log : str
        What the job printed on both of its streams.
    """

    state: str
    code: int
    log: str


@dataclass
class Slurm:
    """A running Slurm.

    Attributes
    ----------
    folder : Path
        Holds all of its files, and the logs of jobs.
    environment : dict
        For commands that talk to it.
    """

    folder: Path
    environment: dict[str, str]
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def call(self, *command: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm to its end."""
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def submit(
        self,
        script: Path,
        *args: object,
        nodes: int = 1,
        tasks: int = 2,
        folder: Path | None = None,
    ) -> str:
        """Submit a script, with `tasks` processes a node, and return the number of the job."""
        done = self.call(
            "sbatch",
            "--parsable",
            f"--nodes={nodes}",
            f"--ntasks-per-node={tasks}",
            "--time=5",
            f"--chdir={folder or self.folder}",
            f"--output={self.folder}/%j.log",
            script,
            *args,
        )
        assert done.returncode == 0, done
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """Return what Slurm says about a job, by its keys."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, seconds: float = 60) -> Job:
        """Wait for the end of a job."""
        limit = time.monotonic() + seconds
        while (about := self.state(job)).get("JobState") in ("PENDING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < limit, (about, self.log(job))
            time.sleep(0.2)
        return Job(about["JobState"], int(about["ExitCode"].partition(":")[0]), self.log(job))

    def log(self, job: str) -> str:
        """Return what a job has printed so far."""
        path = self.folder / f"{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, name: str, *options: str) -> None:
        """Start a daemon in the foreground, as a child."""
        path = daemon(name)
        assert path is not None
        with open(self.folder / f"{name}.out", "ab") as log:
            process = subprocess.Popen(
                [path, *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._daemons.append(process)

    def stop(self) -> None:
        """End every job and daemon."""
        self.call("scancel", "--user", getpass.getuser())
        for process in reversed(self._daemons):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def running(folder: Path, environment: Mapping[str, str]) -> Iterator[Slurm]:
    """Start a Slurm in a folder and yield it once its nodes are idle.

    Parameters
    ----------
    folder : Path
        New or empty; a short path, since sockets lie in it.
    environment : mapping of str to str
        What jobs inherit from the shell that submits them.
    """
    folder.chmod(0o755)
    for name in ("state", *(f"node{i}" for i in range(NODES))):
        (folder / name).mkdir()
    ports = _free_ports(1 + NODES)
    text = CONFIGURATION.format(user=getpass.getuser(), folder=folder, ports=ports)
    for i in range(NODES):
        text += NODE.format(i=i, port=ports[1 + i], cpus=CPUS_A_NODE)
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)

    slurm = Slurm(folder, {**environment, "SLURM_CONF": f"{folder}/slurm.conf"})
    try:
        slurm.start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )
        _until(slurm, lambda: (folder / "munge.socket").exists())
        slurm.start("slurmctld", "-D", "-c")
        for i in range(NODES):
            slurm.start("slurmd", "-D", "-N", f"node{i}")
        _until(slurm, lambda: slurm.call("sinfo", "-h", "-o", "%T %D").stdout == f"idle {NODES}\n")
        yield slurm
    finally:
        slurm.stop()


def _until(slurm: Slurm, ready: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not ready():
        if time.monotonic() > limit:
            said = [path.read_text(errors="replace")[-800:] for path in slurm.folder.glob("*.log")]
            raise AssertionError("\n".join(["Slurm does not start", *said]))
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
