// Package e2e tests tsugiki as its users run it: the built command, with real
// and unmodified programs, in topologies of package testkit.
//
// It owns those tests and the small programs that they build (testdata). It
// imports no part of tsugiki: what a test knows, a user could know. Behaviour
// of single calls is the business of package conformance, and speed that of
// the benches.
//
// The tests need root and Linux 5.19, and skip by name the programs that are
// not installed. They work in namespaces of their own and leave nothing behind.
package e2e
