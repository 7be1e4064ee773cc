// Package vm has tests of virtual machines: a User-Mode Linux guest without a network card, whose
// programs have sockets of a host in a namespace. The guest has busybox and tsugiki.
//
// The tests need root, Linux 5.15, x86-64, and the Debian packages user-mode-linux and
// busybox-static. A boot takes two seconds.
package vm
