// Package vm has tests of virtual machines: a User-Mode Linux guest without a network card, whose
// programs have sockets of a host in a namespace (internal/testkit/uml).
//
// The tests need what that package needs, and CGO_ENABLED=0: the guest runs the test's binary, too.
package vm
