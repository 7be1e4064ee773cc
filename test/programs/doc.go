// Package programs tests that real programs, which rely on the names, ports and addresses of a
// loopback, work in a grafted container as they do on the host.
//
// Each file of testdata is a case: unmodified programs of Debian's with their configuration. A
// case runs bare on the host, which is the control, and in a container whose namespace has
// nothing but a loopback, in each mode that a static program works in. All have to print the
// same. The package imports no part of tsugiki. Package e2e has the programs that talk to a
// remote, and package conformance single calls.
//
// The cases of testdata/translated are of programs that know IPv4 only. They run bare in a network that
// has IPv4, and translated in one that has IPv6 only, and print the same of either.
//
// The tests need root and Linux 5.19, and skip by name the programs that are not installed. They
// work in namespaces of their own and leave nothing behind.
package programs
