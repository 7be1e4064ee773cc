#!/bin/bash
# Puts what a package has into a folder, in its places below /usr and /etc:
#   packaging/stage.sh BIN ROOT VERSION ZSH
# BIN has the binaries, as make build leaves them. ZSH is the folder for completions of zsh.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
source=$here/..
bin=$(realpath "$1") root=$2 version=$3 zsh=$4

# The licenses of what the binaries contain: of Go, of the modules, of musl.
licenses() {
	local path dir
	(
		cd "$source"
		echo "std $(go env GOROOT)"
		go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/... | sort -u
	) | while read -r path dir; do
		printf '\n== Go: %s\n\n' "$path"
		# A package refers to what all systems have, but for who wrote it.
		if grep -q '^ *Apache License$' "$dir"/LICENSE* 2>/dev/null; then
			sed -n 's/^ *\(Copyright [0-9(]\)/\1/p' "$dir"/LICENSE*
			echo "Apache-2.0, see /usr/share/common-licenses/Apache-2.0."
		else
			cat "$dir"/LICENSE* || cat "$dir"/COPYING*
		fi
	done
	printf '\n== musl, in tsugiki-keeper, tsugiki-gate and tsugiki-log\n\n'
	cat /usr/share/doc/musl/copyright
}

mkdir -p "$root"
make -s --no-print-directory -C "$source" install BIN="$bin" DESTDIR="$root" PREFIX=/usr VERSION="$version" ZSH="$zsh"
strip --strip-unneeded "$root"/usr/bin/*
gzip -9n "$root"/usr/share/man/man?/*
{
	cat "$here/deb/copyright"
	licenses
} >"$root/usr/share/doc/tsugiki/copyright"
