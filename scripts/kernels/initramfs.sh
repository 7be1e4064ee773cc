#!/bin/bash
# initramfs.sh KERNEL  shows that tsugiki guest run works in an initramfs: it makes one for a kernel, a directory
# of fetch.sh's, by Debian's initramfs-tools with the hook of packaging/initramfs, and boots it in qemu, which
# translates. The guest has no network card. Its program, which the hook has added, gets a page of a web server
# on the host, and powers off. The script prints the guest's console, and fails unless the page is there.
#
# It needs root, and what scripts/deps.sh kernels and make build install and make. Packages are downloaded to
# .cache; none is installed. What is made is in a mount and a network namespace of the script's own.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
tree=$(realpath "$here/../..")
packages=$tree/.cache/initramfs-tools
if [[ ${1:-} != --inside ]]; then
	if [[ ! -e $packages/complete ]]; then
		mkdir -p "$packages"
		(cd "$packages" && apt-get -o APT::Sandbox::User=root download -qq initramfs-tools-core klibc-utils libklibc cpio udev logsave)
		touch "$packages/complete"
	fi
	exec unshare --mount --net --propagation private "$0" --inside "$(realpath "$1")"
fi
kernel=$2
release=$(basename "$kernel"/lib/modules/*)
work=$(mktemp -d)
daemons=()
trap '((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null || true; wait; umount "$work/root" "$work" 2>/dev/null; rm -rf "$work"' EXIT
mount -t tmpfs work "$work"

# A root in which initramfs-tools are installed: this machine's, with a layer of memory.
mkdir -p "$work"/{root,layer,spare}
mount -t overlay -o "lowerdir=/,upperdir=$work/layer,workdir=$work/spare" root "$work/root"
for package in "$packages"/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$work/root"; done
install -D -t "$work/root/usr/bin" "$tree/bin/tsugiki"
cp -a "$tree"/packaging/initramfs/{hooks,scripts} "$work/root/usr/share/initramfs-tools/"
mkdir -p "$work/root/lib/modules" "$work/root/boot"
cp -a "$kernel/lib/modules/$release" "$work/root/lib/modules/"
echo CONFIG_RD_GZIP=y >"$work/root/boot/config-$release" # which fetch.sh does not keep; mkinitramfs asks for this
mkdir -p "$work/root/etc/tsugiki/guest"
cat >"$work/root/etc/tsugiki/guest/initramfs" <<'EOF'
#!/bin/sh
echo "in the initramfs: $(wget -q -O - http://198.51.100.1:8080/)"
poweroff -f
EOF
chmod +x "$work/root/etc/tsugiki/guest/initramfs"
mount -t proc proc "$work/root/proc"
chroot "$work/root" mkinitramfs -c gzip -o /initramfs "$release"
umount "$work/root/proc"

# A host with an address, and a page.
ip link set lo up
ip addr add 198.51.100.1/32 dev lo
mkdir "$work/www"
echo "a page of the host" >"$work/www/index.html"
busybox httpd -f -p 198.51.100.1:8080 -h "$work/www" &
daemons+=($!)
"$tree/bin/tsugiki" guest attach --vsock "$work/vsock" --name "initramfs-$$" --run-dir "$work/run" -e 0.0.0.0/0=0.0.0.0 &
daemons+=($!)
until [[ -S $work/vsock ]]; do
	kill -0 ${daemons[1]}
	sleep 0.1
done
timeout --foreground 600 qemu-system-x86_64 -M q35,memory-backend=mem -accel tcg -cpu max -m 512 \
	-object memory-backend-memfd,id=mem,size=512M,share=on -nodefaults -display none -no-reboot -serial stdio \
	-chardev "socket,id=vsock,path=$work/vsock" -device vhost-user-vsock-pci,chardev=vsock \
	-kernel "$kernel/vmlinuz" -initrd "$work/layer/initramfs" \
	-append "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable" </dev/null | tee "$work/console"
grep -q "in the initramfs: a page of the host" "$work/console"
