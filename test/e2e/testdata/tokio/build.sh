#!/bin/bash
# Builds tokio-net, static and with musl, into DIR: build.sh DIR. Debian has no
# standard library of Rust for musl, but its source, with all that it depends on:
# cargo builds it too (-Zbuild-std, for which a stable compiler has to be told).
#
# That takes 90 seconds of CPU time. So the program is kept in the user's cache directory, under a
# digest of all that it is made of, for other clones of the repository.
set -euo pipefail
cd "$(dirname "$0")"
dir=$1
arch=$(uname -m)
made_of() {
	cat build.sh Cargo.toml Cargo.lock unwind.c src/*
	/usr/bin/rustc -vV
	cat "/usr/lib/$arch-linux-musl/libc.a"
}
digest=$(made_of | sha256sum | cut -c 1-32)
kept=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/tsugiki/tokio-net-$digest
if [[ -e $kept ]]; then
	install -D "$kept" "$dir/tokio-net"
	exit
fi
target=$arch-unknown-linux-musl
mkdir -p "$dir/lib"
musl-gcc -O2 -Wall -Wextra -Werror -c -o "$dir/lib/unwind.o" unwind.c
ar rcs "$dir/lib/libunwind.a" "$dir/lib/unwind.o"
# musl-gcc cannot link static-pie. Not a compiler of rustup, which would have no source.
export PATH=/usr/bin:/bin RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$dir
unset RUSTC RUSTC_WRAPPER RUSTFLAGS
export "CARGO_TARGET_${arch^^}_UNKNOWN_LINUX_MUSL_LINKER=musl-gcc"
export "CARGO_TARGET_${arch^^}_UNKNOWN_LINUX_MUSL_RUSTFLAGS=-C link-self-contained=no -C relocation-model=static -L native=$dir/lib"
cargo build --locked --quiet --target "$target" -Zbuild-std=std,panic_abort -Zbuild-std-features=
install "$dir/$target/debug/tokio-net" "$dir/tokio-net"
install -D "$dir/tokio-net" "$kept.$$"
mv "$kept.$$" "$kept"
