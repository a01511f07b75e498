#!/bin/sh
# node_init.sh NAME [PATH...]: the first process of a node, in namespaces of its own. /srv/scratch outlives the node; /tmp, /dev/shm and
# /srv/local begin empty at each boot, else a requeued Slurm step meets the directory and socket that the killed one left. PATHs of /tmp
# stay visible. Prints its pid, as the test sees it, when all is there.
set -e
name=$1
shift
read -r pid _ < /proc/self/stat
hostname "$name"
mount -t proc proc /proc
mount -t tmpfs tmpfs /srv/local
cat /proc/sys/kernel/random/uuid > /srv/local/boot_id
mount --bind /srv/local/boot_id /proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs /dev/shm  # else all nodes' ranks share the watchdog's board
mount --bind "/srv/of/$name/scratch" /srv/scratch
mkdir /srv/local/tmp
chmod 1777 /srv/local/tmp
for path; do
  mkdir -p "/srv/local$path"
  mount --rbind "$path" "/srv/local$path"
done
mount --rbind /srv/local/tmp /tmp  # slurmstepd's pmix makes /tmp/spmix_appdir_UID_JOB.STEP, and fails if a neighbour has
echo "$pid"
exec > /dev/null
trap '' CHLD  # the kernel reaps orphans
exec sleep infinity
