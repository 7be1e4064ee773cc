#!/bin/bash
# Makes a Debian package of the binaries in a folder, as make build leaves them:
#   packaging/deb/build.sh BIN OUT VERSION
# DEB_COMPRESSION is xz, unless it says something else that dpkg-deb knows.
# It is made by dpkg-deb of what make install puts where, so that nothing but dpkg
# and binutils is needed. Of one commit and the same compilers the package is always
# the same.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
source=$here/../..
bin=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=$3
maintainer="The Tsugiki authors <maintainers@tsugiki.invalid>"

described=$("$here/../version.sh" "$version")
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct 2>/dev/null || stat -c %Y "$bin/tsugiki")
export SOURCE_DATE_EPOCH
arch=$(dpkg --print-architecture)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
"$here/../stage.sh" "$bin" "$root" "$version" vendor-completions
version=$described
install -D -m 644 "$here/lintian-overrides" "$root/usr/share/lintian/overrides/tsugiki"
doc=$root/usr/share/doc/tsugiki
cat >"$work/changelog" <<END
tsugiki ($version) unstable; urgency=medium

  * See the history of the source for what has changed.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
gzip -9nc "$work/changelog" >"$doc/changelog.gz"

# What the binaries load. Nothing, as long as they are static, and the library
# does without a C library; a new one has to be found a package here.
objdump --version >/dev/null
depends=()
while read -r library; do
	case $library in
	libc.so.6 | ld-linux-*) depends=(libc6) ;;
	*)
		echo "packaging: no package is known for $library" >&2
		exit 1
		;;
	esac
done < <(find "$root" -type f -perm /111 -print0 | xargs -0 objdump -p 2>/dev/null | awk '$1 == "NEEDED" { print $2 }' | sort -u)

mkdir "$root/DEBIAN"
install -t "$root/DEBIAN" "$here/postinst" "$here/prerm" "$here/postrm"
echo /etc/tsugiki/agent.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
{
	cat <<END
Package: tsugiki
Version: $version
Architecture: $arch
Maintainer: $maintainer
Section: net
Priority: optional
Homepage: https://github.com/tsugiki/tsugiki
Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f1)
END
	((${#depends[@]} == 0)) || echo "Depends: ${depends[*]}"
	cat <<END
Description: host networking for containers, without handing them the host's network
 Sockets of programs in containers are replaced by sockets that were made in
 the host's network namespace, and nothing is left in the data path. What a
 container may bind and reach is enforced in the kernel.
 .
 tsugiki doctor tells whether this machine has what it takes.
END
} >"$root/DEBIAN/control"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
file=$out/tsugiki_${version}_$arch.deb
dpkg-deb --root-owner-group "-Z${DEB_COMPRESSION:-xz}" --build "$root" "$file" >/dev/null
echo "$file"
