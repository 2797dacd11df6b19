"""What SLURM says about this job; outside of a job, whether there is a SLURM and what it offers."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from megabert.doctor.finding import Finding


def check_slurm(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Describe the job that this process is part of, or the SLURM that could start one."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return [Finding(area="slurm", level="ok", text=_outside())]
    nodes = environment.get("SLURM_JOB_NODELIST", "?")
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "?")
    text = f"job {job}, {environment.get('SLURM_JOB_NUM_NODES', '?')} node(s): {nodes}, {tasks} task(s)"
    findings = [Finding(area="slurm", level="ok", text=text)]
    asked, given = environment.get("SLURM_CPUS_PER_TASK"), len(os.sched_getaffinity(0))
    if asked and asked.isdigit() and given < int(asked):
        text = f"a task has {given} of the {asked} cores that it asked for"
        remedy = "From SLURM 22.05 on srun needs --cpus-per-task itself; the scripts in slurm/ pass it."
        findings.append(Finding(area="slurm", level="note", text=text, remedy=remedy))
    return findings


def _outside() -> str:
    sinfo = shutil.which("sinfo")
    if sinfo is None:
        return "absent (optional: slurm/ needs it)"
    try:
        shown = subprocess.run(
            [sinfo, "--noheader", "--format=%P %D %T"], capture_output=True, text=True, timeout=15, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"sinfo does not answer ({type(error).__name__})"
    if shown.returncode:
        return f"sinfo is here but reaches no controller: {(shown.stderr.strip().splitlines() or ['?'])[-1]}"
    return "login node; partitions, nodes, state: " + "; ".join(shown.stdout.split("\n")[:8]).strip("; ")
