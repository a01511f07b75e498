#!/bin/bash
%%MADE_BY%%: --install replaces it, --uninstall ends its chain.
# Runs a policy. Before the run, and again after it, this script makes sure that one job of this chain waits for
# the next time. The chain continues after a failure, a time limit, a requeue and scancel of a run. It ends if the
# waiting job is cancelled while no other runs, or if this file is removed. `sbatch` of this file by hand runs the
# policy at once and adds no second chain.
#SBATCH --job-name=%%NAME%%
#SBATCH --ntasks=1
#SBATCH --time=%%TIME%%
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%%LOG%%
%%SITE%%
chain=%%NAME%%
script=%%SCRIPT%%
policy=%%POLICY%%
# Variables that would change the output of squeue and the options above.
unset "${!SQUEUE_@}" SBATCH_JOB_NAME SBATCH_TIMELIMIT SBATCH_NO_REQUEUE SBATCH_OPEN_MODE SBATCH_OUTPUT \
  SBATCH_ARRAY_INX SBATCH_WAIT

# True if another job of this chain has not started yet.
another_waits() {
  local jobs=$1 job state name
  while read -r job state name; do
    case $name in %%PREFIX%%*-%%ID%%) ;; *) continue ;; esac
    case $state in RUNNING | COMPLETING | SUSPENDED | STOPPED) continue ;; esac
    [ "$job" = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" ] || return 0
  done <<< "$jobs"
  return 1
}

# submit_next TRIES: submits a job that waits for its time, and for the others of the chain (singleton) or for
# all tasks of this array, of which the first one submits.
submit_next() {
  local tries jobs file
  [ "${SLURM_ARRAY_TASK_ID:-0}" = 0 ] || return 0
  for ((tries = $1; tries > 0; --tries)); do
    if [ ! -e "$script" ] && [ -e "$policy" ]; then
      echo "$chain: $script no longer exists, so this is the last run; 'cairn archive schedule ... --install' starts a new chain"
      return 0
    fi
    if jobs=$(squeue -h -u "$(id -u)" -o '%F %T %j'); then
      another_waits "$jobs" && return 0
      file=$script
      [ -r "$file" ] || file=$0
      sbatch --begin=now+%%HOURS%%hours --dependency=%%AFTER%% "$file" && return 0
    fi
    ((tries == 1)) || sleep 20
  done
  echo "$chain: cannot submit the next run" >&2
  return 1
}

submit_next 3
%%RUN%%
status=$?
if ! submit_next 30; then
  echo "$chain: the chain ends here; start it again with 'cairn archive schedule ... --install'" >&2
  [ "$status" != 0 ] || status=2
fi
exit "$status"
