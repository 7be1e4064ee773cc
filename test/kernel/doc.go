// Package kernel proves, one small test per behaviour, what Tsugiki takes
// for granted about the kernel. A test that fails here names the assumption
// that a new kernel broke, and the part of Tsugiki that rests upon it, before
// anything larger fails for reasons that are hard to see.
//
// It has no code of its own besides the tests, and tests nothing of Tsugiki:
// the programs it attaches are written in the test that uses them. Every test
// works inside network namespaces and child cgroups that it makes and removes.
//
// The tests need root and Linux 5.14 with cgroup2; one whose kernel lacks the
// feature is skipped and says which feature it misses.
package kernel
