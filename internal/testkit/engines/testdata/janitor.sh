# Makes the mount namespace of a rig ready, holds it, and takes the rig down when
# standard input ends, in whatever way the test has.
# usage: unshare --mount sh janitor.sh FOLDER GROUP PATH..., the first two made by the caller: an
# empty folder, and the rig's cgroup in the v2 hierarchy. What is written below the paths is not
# the machine's.
dir=$1 group=$2
name=${group##*/}
shift 2

# Ends what the rig has started and removes what it has left. The engines make
# groups of the same name in the other hierarchies.
clean() {
	echo 1 >"$group/cgroup.kill"
	for g in /sys/fs/cgroup/*/"$name" "$group"; do
		tries=500
		while [ -d "$g" ] && ! find "$g" -depth -type d -exec rmdir {} + 2>/dev/null; do
			sleep 0.02
			tries=$((tries - 1))
			if [ $tries = 0 ]; then
				echo "$g is still in use" >&2
				break
			fi
		done
	done
	umount -l "$dir" && rmdir "$dir"
}

set -e
trap '' HUP INT TERM PIPE
trap clean EXIT
mount -t tmpfs -o mode=755 rig "$dir"
for d; do
	mkdir -p "$dir/written$d" "$dir/scratch$d"
	mount -t overlay -o "lowerdir=$d,upperdir=$dir/written$d,workdir=$dir/scratch$d" rig "$d"
done
mount -t tmpfs -o mode=755 rig /run
echo ready
read -r _ || : # nothing is ever written to it
