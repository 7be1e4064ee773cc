#!/bin/bash
# Builds tokio-net, static and with musl, into DIR: build.sh DIR. Debian has no
# standard library of Rust for musl, but its source, with all that it depends on:
# cargo builds it too (-Zbuild-std, for which a stable compiler has to be told).
set -euo pipefail
cd "$(dirname "$0")"
dir=$1
arch=$(uname -m)
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
