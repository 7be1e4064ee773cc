// Package bpf holds the eBPF programs, as C source and as the objects that the
// compiler made of them, with Go types generated from the C ones.
//
// It loads and attaches nothing: that is for the package that owns the
// purpose, such as policy. The objects are committed; `make generate` makes
// them again with clang.
package bpf

//go:generate go tool bpf2go -go-package bpf -output-dir . -target bpfel -type addr -type port_range -type graft_option -cflags "-O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Policy policy.bpf.c
