# Makes the namespaces of a machine ready, and becomes its systemd. The namespaces of mounts,
# processes and cgroups are new.
# usage: sh boot.sh UNIT..., the services of the distribution that the machine has
set -e
mount -t proc proc /proc
# systemd changes settings of the kernel. Here it can change those of its own network only.
mount --bind /proc/sys /proc/sys
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,ro /proc/sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ip link set lo up

units=/usr/lib/systemd/system
mkdir /run/units /run/services
for unit; do cp "$units/$unit" /run/units/; done
for d in "$units" /usr/lib/systemd/system-generators /etc/systemd /etc/init.d; do
	mount -t tmpfs -o mode=755 machine "$d"
done
mv /run/units/* "$units/"
mkdir -p /etc/systemd/system/service.d
# One for all services: no journal runs, and tests start services more often than people do.
printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nStandardOutput=append:/run/services/%%N.log\nStandardError=append:/run/services/%%N.log\n' \
	>/etc/systemd/system/service.d/log.conf
for target in sysinit sockets network local-fs shutdown; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" >"$units/$target.target"
done
printf '[Unit]\nDescription=basic\nDefaultDependencies=no\nRequires=sysinit.target sockets.target\nAfter=sysinit.target sockets.target\n' \
	>"$units/basic.target"
printf '[Unit]\nDescription=all\nRequires=basic.target\nAfter=basic.target\n' >"$units/multi-user.target"

# Engines store what they have here, in the memory.
for d in /var/lib/docker /var/lib/containerd; do
	mkdir -p "$d"
	mount -t tmpfs -o mode=711 machine "$d"
done
rm -f /usr/sbin/policy-rc.d # services start when they are installed
exec env -i container=test PATH="$PATH" /lib/systemd/systemd --system --unit=multi-user.target \
	--log-target=console --log-level=warning --show-status=no
