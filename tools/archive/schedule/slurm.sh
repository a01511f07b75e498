#!/bin/bash
%%MADE_BY%%: --install makes it anew, --uninstall ends its chain.
# Runs a policy. Before that, and again at its end, it sees to it that one job of this chain waits for the next
# time: no failure, time limit, requeue or scancel of a run ends the chain; scancel of the waiting job while no
# other runs does, and so does removing this file. `sbatch` of it by hand runs the policy at once and adds no
# second chain.
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
# What would change the answers of squeue and the options above.
unset "${!SQUEUE_@}" SBATCH_JOB_NAME SBATCH_TIMELIMIT SBATCH_NO_REQUEUE SBATCH_OPEN_MODE SBATCH_OUTPUT \
  SBATCH_ARRAY_INX SBATCH_WAIT

# True where another job of this chain has yet to begin.
another_waits() {
  local jobs=$1 job state name
  while read -r job state name; do
    case $name in %%PREFIX%%*-%%ID%%) ;; *) continue ;; esac
    case $state in RUNNING | COMPLETING | SUSPENDED | STOPPED) continue ;; esac
    [ "$job" = "$SLURM_JOB_ID" ] || return 0
  done <<< "$jobs"
  return 1
}

# submit_next TRIES: a job that waits for its time, and of the chain runs alone (singleton).
submit_next() {
  local tries jobs file
  for ((tries = $1; tries > 0; --tries)); do
    if [ ! -e "$script" ] && [ -e "$policy" ]; then
      echo "$chain: $script is gone, so this is the last run; 'cairn archive schedule ... --install' begins again"
      return 0
    fi
    if jobs=$(squeue -h -u "$(id -u)" -o '%i %T %j'); then
      another_waits "$jobs" && return 0
      file=$script
      [ -r "$file" ] || file=$0
      sbatch --begin=now+%%HOURS%%hours --dependency=singleton "$file" && return 0
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
  echo "$chain: the chain ends here; begin it again by 'cairn archive schedule ... --install'" >&2
  [ "$status" != 0 ] || status=2
fi
exit "$status"
