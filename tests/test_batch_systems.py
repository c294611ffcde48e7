"""Batch scripts, run by the batch system they are for where it can be had.

Slurm is started here, two nodes on this machine (see :mod:`slurm`). PBS, LSF and Flux are not
packaged for Debian or PyPI: their scripts run in the environment that these systems document for a
job, with what the system itself would start.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_files import job, kineto
from slurm import Slurm, absent, running

from mpisim.cli.launch import launched_size

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "run_scripts"
WORLD = 4
"""Simulated ranks of the jobs here."""


def digest(report: str) -> str:
    """Return the digest that a report prints."""
    found = re.search(r"^digest +([0-9a-f]{32})$", report, re.MULTILINE)
    assert found, report
    return found[1]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with the traces of a small job."""
    return job(tmp_path / "traces", *(kineto(rank, WORLD) for rank in range(WORLD)))


@pytest.fixture
def alone(run_mpisim, traces) -> str:
    """The digest of the job, replayed without a launcher."""
    return digest(run_mpisim(["replay", traces]).stdout)


# --- Slurm ----------------------------------------------------------------------------------------

needs_slurm = pytest.mark.skipif(
    bool(absent()) or launched_size() > 1,
    reason=f"no Slurm here ({', '.join(absent())}); Debian: slurmctld slurmd slurm-client munge",
)


@pytest.fixture(scope="module")
def slurm(launch_environment, tmp_path_factory) -> Iterator[Slurm]:
    """A running Slurm; jobs are submitted from a shell in which env.sh was sourced."""
    clean = {k: v for k, v in launch_environment.items() if not k.startswith("SLURM_")}
    with running(tmp_path_factory.mktemp("slurm"), clean) as cluster:
        yield cluster


def check_pmix(slurm: Slurm) -> None:
    """Skip the test where srun cannot start MPI processes by PMIx."""
    known = slurm.call("srun", "--mpi=list")
    tried = slurm.call("srun", "--mpi=pmix", "--ntasks=1", "true")
    # The plug-in may be there without the library that it loads: then srun knows no such type.
    if "pmix" not in known.stdout + known.stderr or "can not load PMIx library" in tried.stderr:
        pytest.skip("this Slurm has no PMIx plug-in")


@needs_slurm
@pytest.mark.parametrize(("nodes", "tasks"), [(1, 2), (2, 2), (1, 1)])
def test_slurm_job(slurm, run_mpisim, traces, alone, tmp_path, nodes, tasks):
    """Submitted, run, its report in the log, its result readable: on as many processes as tasks."""
    number = slurm.submit(
        SCRIPTS / "slurm.sh",
        "replay",
        traces,
        "-o",
        tmp_path / "r.h5",
        nodes=nodes,
        tasks=tasks,
        folder=REPOSITORY,
    )
    done = slurm.wait(number)
    assert (done.state, done.code) == ("COMPLETED", 0), done
    assert digest(done.log) == alone
    processes = nodes * tasks
    if processes > 1:
        assert f"{WORLD} on {processes} processes" in done.log
    assert digest(run_mpisim(["report", tmp_path / "r.h5"]).stdout) == alone
    assert sorted(os.listdir(tmp_path)) == ["r.h5", "traces"]


@needs_slurm
def test_slurm_job_of_bad_input(slurm, tmp_path):
    """The job fails with mpisim's own exit code, and its line stands in the log once."""
    number = slurm.submit(
        SCRIPTS / "slurm.sh", "replay", tmp_path / "none", nodes=2, tasks=1, folder=REPOSITORY
    )
    done = slurm.wait(number)
    assert (done.state, done.code) == ("FAILED", 2), done
    line = f"mpisim: error: {tmp_path}/none: no such file or directory"
    assert done.log.count(line) == 1
    assert "Traceback" not in done.log


@needs_slurm
def test_srun_without_mpi_is_refused(slurm):
    """Tasks of a step that each see themselves alone would all write the same result."""
    done = slurm.call(
        "srun",
        "--mpi=none",
        "--ntasks=2",
        "--nodes=1",
        "--time=2",
        sys.executable,
        "-m",
        "mpisim",
        "run",
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("mpisim: error:")]
    assert len(lines) == 1
    assert "the launcher started 2 processes but MPI sees only one" in lines[0]
    assert "srun --mpi=pmix" in lines[0]
    assert done.stdout == ""


@needs_slurm
def test_srun_with_pmix(slurm, traces, alone):
    """A step of two tasks is one run of two processes."""
    check_pmix(slurm)
    done = slurm.call(
        "srun",
        "--mpi=pmix",
        "--ntasks=2",
        "--nodes=1",
        "--time=2",
        sys.executable,
        "-m",
        "mpisim",
        "replay",
        traces,
    )
    assert done.returncode == 0, done
    assert digest(done.stdout) == alone
    assert f"{WORLD} on 2 processes" in done.stdout


@needs_slurm
def test_step_whose_tasks_cannot_reach_each_other(slurm):
    """Shared memory alone, which PMIx does not always show: through, or one line, no traceback."""
    check_pmix(slurm)
    done = slurm.call(
        "srun",
        "--mpi=pmix",
        "--ntasks=2",
        "--nodes=1",
        "--time=2",
        "env",
        "OMPI_MCA_pml=ob1",
        "OMPI_MCA_btl=self,sm",
        sys.executable,
        "-m",
        "mpisim",
        "run",
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "cannot reach the others" in done.stderr
        assert "OMPI_MCA_btl=self,sm" in done.stderr


@needs_slurm
def test_serial_command_in_a_batch_script(slurm, traces, alone, tmp_path):
    """Outside srun, SLURM_NTASKS says nothing about this process: it may run alone."""
    script = tmp_path / "serial.sh"
    script.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m mpisim "$@"\n')
    done = slurm.wait(slurm.submit(script, "replay", traces, tasks=2))
    assert (done.state, done.code) == ("COMPLETED", 0), done
    assert digest(done.log) == alone


@needs_slurm
def test_cancelled_job_leaves_nothing(slurm, tmp_path):
    """Cancelled while it simulates: no result, whole or in part."""
    number = slurm.submit(
        SCRIPTS / "slurm.sh",
        "run",
        "echo-gpt3-175b-1024-h800",
        "--no-fold",
        "--timeline",
        "--set",
        "variation.kernels=0.02",
        "--seeds",
        "200",
        "-o",
        tmp_path / "r.h5",
        folder=REPOSITORY,
    )
    limit = time.monotonic() + 30
    while slurm.state(number)["JobState"] != "RUNNING":
        assert time.monotonic() < limit
        time.sleep(0.1)
    time.sleep(3)
    assert slurm.call("scancel", number).returncode == 0
    done = slurm.wait(number)
    assert done.state == "CANCELLED", done
    assert os.listdir(tmp_path) == []


# --- transports of env.sh -------------------------------------------------------------------------


def transports(**environment: str) -> dict[str, str]:
    """Return the transports that env.sh leaves in a shell, sourced twice where `then` is given."""
    then = environment.pop("then", "")
    script = f"source {SCRIPTS}/env.sh; {then and f'export {then}; source {SCRIPTS}/env.sh;'} env"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "SLURM_", "MPISIM"))}
    text = subprocess.run(
        ["bash", "-c", script], env={**clean, **environment}, capture_output=True, text=True
    ).stdout
    return dict(re.findall(r"^OMPI_MCA_(pml|btl)=(.*)$", text, re.MULTILINE))


def test_transports_of_one_machine_do_not_reach_a_job():
    """A job inherits the shell that submits it: what held for that machine is taken back."""
    assert transports()["btl"].startswith("self,")
    assert "tcp" in transports()["btl"]  # a step that sees no shared memory still gets through
    assert transports(SLURM_JOB_ID="7") == {}
    assert transports(then="SLURM_JOB_ID=7") == {}
    assert transports(then="PBS_JOBID=7.host") == {}


def test_own_transports_stay():
    own = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "self,ofi"}
    kept = {"pml": "ucx", "btl": "self,ofi"}
    assert transports(**own) == kept
    assert transports(**own, SLURM_JOB_ID="7") == kept
    assert transports(**own, then="SLURM_JOB_ID=7") == kept


# --- PBS, LSF, Flux: their environment, not their daemons -----------------------------------------

FLUX = """\
#!/usr/bin/env bash
# Stands in for flux: "flux run --ntasks=N -o pmi=pmix COMMAND …" starts N processes.
[ "$1" = run ] && [[ "$2" = --ntasks=* ]] && [ "$3 $4" = "-o pmi=pmix" ] || exit 64
exec mpirun -n 2 "${@:5}"
"""


@pytest.mark.parametrize("system", ["pbs", "lsf", "flux"])
def test_script_in_its_environment(launch_environment, traces, alone, tmp_path, system):
    """What PBS, LSF and Flux set for a job of two processes: the script runs to its report."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")
    command = f"replay {traces} -o {tmp_path}/r.h5"
    home = str(REPOSITORY)
    settings = {
        "pbs": {"PBS_JOBID": "1.host", "PBS_O_WORKDIR": home, "PBS_NODEFILE": str(hosts)},
        "lsf": {"LSB_JOBID": "1", "LS_SUBCWD": home, "LSB_DJOB_HOSTFILE": str(hosts)},
        "flux": {"FLUX_URI": "local:///none"},
    }[system] | {"MPISIM_ARGS": command}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flux").write_text(FLUX)
    (tmp_path / "bin" / "flux").chmod(0o755)
    path = f"{tmp_path}/bin:{launch_environment['PATH']}"
    clean = {k: v for k, v in launch_environment.items() if not k.startswith("OMPI_MCA")}
    done = subprocess.run(
        ["bash", SCRIPTS / f"{system}.sh", *(command.split() if system == "flux" else [])],
        cwd=REPOSITORY,
        env={**clean, **settings, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    assert digest(done.stdout) == alone
    assert f"{WORLD} on 2 processes" in done.stdout


# Option letters and resources that the manuals know: qsub(1B) of OpenPBS 23, bsub(1) of LSF 10,
# sbatch(1) of Slurm 22.05, flux-batch(1) of flux-core 0.60.
DIRECTIVES = {
    "slurm": (
        r"#SBATCH --(\S+?)=",
        {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time"},
    ),
    "pbs": (r"#PBS -(\w) ", {"N", "l"}),
    "lsf": (r"#BSUB -(\w) ", {"J", "n", "R", "W", "o"}),
    "flux": (r"# flux: --(\S+?)=", {"job-name", "nodes", "nslots", "time-limit"}),
}


@pytest.mark.parametrize("system", DIRECTIVES)
def test_script_is_well_formed(system):
    """Bash reads it; every directive is one that the system knows, before the first command."""
    path = SCRIPTS / f"{system}.sh"
    subprocess.run(["bash", "-n", path], check=True)
    pattern, known = DIRECTIVES[system]
    head = path.read_text().split("\nset -euo", 1)[0].splitlines()
    found = [match[1] for line in head if (match := re.match(pattern, line))]
    assert found
    assert set(found) <= known
