#!/bin/bash
# fetch.sh VERSION  gets the newest kernel of Debian, or of Ubuntu 22.04, that is VERSION, "6.1",
# and prints its directory, which has vmlinuz and lib/modules. It installs nothing. The machine's
# own package lists stay as they are.
set -euo pipefail
version=$1
here=$(dirname "$(realpath "$0")")
cache=$(realpath -m "$here/../../.cache/kernels")
apt=$cache/apt
if [[ ! $apt/complete -nt $here/fetch.sh ]]; then
	mkdir -p "$apt"/lists/partial "$apt"/archives/partial
	: >"$apt/status"
	key="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	for suite in bullseye bookworm bookworm-backports trixie; do
		echo "deb $key http://deb.debian.org/debian $suite main"
		[[ $suite == *-* ]] || echo "deb $key http://deb.debian.org/debian-security $suite-security main"
	done >"$apt/sources.list"
	# Debian has no 5.15. The key is F6ECB3762474EDA9D21B7022871920D1991BC93C, of 2018.
	for suite in jammy-updates jammy-security; do
		echo "deb [signed-by=$here/ubuntu-archive.asc] http://archive.ubuntu.com/ubuntu $suite main"
	done >>"$apt/sources.list"
fi
options=(-o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
	-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
	-o Acquire::Languages=none -o APT::Sandbox::User=root)
if [[ ! $apt/complete -nt $here/fetch.sh ]]; then
	apt-get "${options[@]}" update -qq >&2
	touch "$apt/complete"
fi
package=$(apt-cache "${options[@]}" pkgnames "linux-image-$version." |
	grep -E "^linux-image-$version\.[0-9]+(-[0-9]+-generic|(-[0-9]+|\+deb[0-9.]+)-amd64)\$" | sort -V | tail -n 1 || true)
if [[ -z $package ]]; then
	echo "fetch.sh: there is no kernel $version; there are:" >&2
	apt-cache "${options[@]}" pkgnames linux-image- | grep -oE '^linux-image-[0-9]+\.[0-9]+' | sort -uV >&2
	exit 1
fi
dir=$cache/$package
if [[ ! -e $dir/vmlinuz ]]; then
	rm -rf "$dir" "$dir.new"
	mkdir -p "$dir.new/lib"
	release=${package#linux-image-}
	packages=("$package")
	[[ $release != *-generic ]] || packages+=("linux-modules-$release")
	(cd "$dir.new" && apt-get "${options[@]}" download -qq "${packages[@]}" >&2 &&
		for deb in ./*.deb; do dpkg-deb -x "$deb" root && rm "$deb"; done)
	mv "$dir.new"/root/{usr/,}lib/modules "$dir.new/lib/" 2>/dev/null || [[ -d $dir.new/lib/modules ]]
	depmod -b "$dir.new" "$release"
	mv "$dir.new/root/boot/vmlinuz-$release" "$dir.new/vmlinuz"
	rm -r "$dir.new/root"
	mv "$dir.new" "$dir"
fi
echo "$dir"
