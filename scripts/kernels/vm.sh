#!/bin/bash
# vm.sh KERNEL MODE COMMAND...  runs a command, as root and in this directory, on
# another kernel: a directory of fetch.sh's. MODE is how cgroups are mounted: v2, v1
# or hybrid. Its output and its exit status are the command's.
#
# The machine's root is this machine's file system, read only, with one in memory
# over it: whatever is installed here can be run, and nothing changes. It has no
# network.
#
#	TSUGIKI_VM_SECONDS  kill it after so long (3600)
#	TSUGIKI_VM_CPUS     its processors (2)
#	TSUGIKI_VM_ACCEL    kvm where that works; without it qemu translates, slowly, on one thread
#	TSUGIKI_VM_MEMORY   in MiB (3072)
#	TSUGIKI_VM_NICE     its niceness (19)
set -euo pipefail
kernel=$(realpath "$1") mode=$2
shift 2
here=$(dirname "$(realpath "$0")")
for program in qemu-system-x86_64 modprobe busybox; do
	if ! command -v $program >/dev/null; then
		echo "vm.sh: $program is not installed: scripts/deps.sh kernels" >&2
		exit 1
	fi
done
release=$(basename "$kernel"/lib/modules/*)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What it takes to mount the root.
root=$work/initramfs
mkdir -p "$root"/{bin,modules,proc,root,dev}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$here/init" "$root/init"
number=100
modprobe -d "$kernel" -S "$release" --show-depends -a virtio_pci 9pnet_virtio 9p overlay |
	awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
	to=$root/modules/$number-$(basename "$module" .xz)
	case $module in
	*.xz) xz -dc "$module" >"$to" ;;
	*) cp "$module" "$to" ;;
	esac
	number=$((number + 1))
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$work/initramfs.gz"

# What to do there. The bash of another process is no place for strange words.
{
	printf 'cd %q\n' "$PWD"
	for name in PATH TSUGIKI_BIN TSUGIKI_PROGRAMS TSUGIKI_SLOW RUN SHORT TIMEOUT; do
		[[ -z ${!name:-} ]] || printf 'export %s=%q\n' $name "${!name}"
	done
	printf '%q ' "$@"
	echo
} >"$work/command"

# The output is the second serial port. The status is written to a port, which ends
# qemu with 2 * status + 3; it ends with 0 if the kernel panics, with 1 if it cannot start.
# A thread for each processor may go on executing a translation of code that another has changed since:
# with qemu 7.2 both then stayed at a breakpoint that the kernel had removed (text_poke), for ever.
# The clock of a translated processor is good, but the kernel does not trust it: without
# tsc=reliable each look at the time is an access to a device.
status=0
nice -n ${TSUGIKI_VM_NICE:-19} timeout --foreground -k 5 "${TSUGIKI_VM_SECONDS:-3600}" qemu-system-x86_64 \
	-accel "${TSUGIKI_VM_ACCEL:-tcg,thread=single}" -cpu max -smp "${TSUGIKI_VM_CPUS:-2}" -m "${TSUGIKI_VM_MEMORY:-3072}" \
	-nodefaults -display none -no-reboot \
	-serial "file:$work/console" -serial stdio \
	-device isa-debug-exit,iobase=0xf4,iosize=1 \
	-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
	-device virtio-9p-pci,fsdev=root,mount_tag=root \
	-kernel "$kernel/vmlinuz" -initrd "$work/initramfs.gz" \
	-append "console=ttyS0 panic=-1 no_timer_check tsc=reliable tsugiki.mode=$mode tsugiki.vm=$here tsugiki.work=$work tsugiki.kernel=$kernel" \
	</dev/null 2>"$work/qemu" || status=$?
if ((status > 1 && status % 2 == 1)); then
	exit $(((status - 3) / 2))
fi
{
	echo "vm.sh: $(basename "$kernel"), $mode: it did not end by itself (qemu: $status). Its console ended with:"
	tail -n 40 "$work/console"
	cat "$work/qemu"
} >&2
exit 1
