// Package conformance proves that a program does not notice being grafted.
//
// It owns the probe, a C program of some hundreds of small cases that use
// sockets in the ways that real programs do (probe/probe.h has its theory of
// operation), the peer that the cases talk to, and the test that runs each
// case in every column: bare in the host's namespace, and under each way of
// grafting. Output and exit status of a column must be equal to those of the
// bare run. It measures no speed and checks no policy.
//
// The test needs root, a C compiler, and Linux 5.19. It works in namespaces
// of its own and leaves nothing behind.
package conformance
