#!/bin/bash
# fetch.sh VERSION  gets the newest kernel of Debian that is VERSION, "6.1", and says
# where it is: a directory with vmlinuz and modules/. It is not installed. The
# machine's own package lists stay as they are.
set -euo pipefail
version=$1
cache=$(realpath -m "$(dirname "$0")/../../.cache/kernels")
apt=$cache/apt
if [[ ! -e $apt/complete ]]; then
	mkdir -p "$apt"/lists/partial "$apt"/archives/partial
	: >"$apt/status"
	key="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	for suite in bullseye bookworm bookworm-backports trixie; do
		echo "deb $key http://deb.debian.org/debian $suite main"
		[[ $suite == *-* ]] || echo "deb $key http://deb.debian.org/debian-security $suite-security main"
	done >"$apt/sources.list"
fi
options=(-o "Dir::State=$apt" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
	-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
	-o Acquire::Languages=none -o APT::Sandbox::User=root)
if [[ ! -e $apt/complete ]]; then
	apt-get "${options[@]}" update -qq >&2
	touch "$apt/complete"
fi
package=$(apt-cache "${options[@]}" pkgnames "linux-image-$version." |
	grep -E "^linux-image-$version\.[0-9]+(-[0-9]+|\+deb[0-9.]+)-amd64\$" | sort -V | tail -n 1 || true)
if [[ -z $package ]]; then
	echo "fetch.sh: Debian has no kernel $version; it has:" >&2
	apt-cache "${options[@]}" pkgnames linux-image- | grep -oE '^linux-image-[0-9]+\.[0-9]+' | sort -uV >&2
	exit 1
fi
dir=$cache/$package
if [[ ! -e $dir/vmlinuz ]]; then
	rm -rf "$dir" "$dir.new"
	mkdir -p "$dir.new"
	(cd "$dir.new" && apt-get "${options[@]}" download -qq "$package" >&2 && dpkg-deb -x ./*.deb root && rm ./*.deb)
	release=${package#linux-image-}
	mkdir -p "$dir.new/lib"
	mv "$dir.new"/root/{usr/,}lib/modules "$dir.new/lib/" 2>/dev/null || [[ -d $dir.new/lib/modules ]]
	depmod -b "$dir.new" "$release"
	mv "$dir.new/root/boot/vmlinuz-$release" "$dir.new/vmlinuz"
	rm -r "$dir.new/root"
	mv "$dir.new" "$dir"
fi
echo "$dir"
