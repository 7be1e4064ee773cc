// Package docs tests that the documents for users are true: each command in a fenced block runs
// as it is printed, and each configuration can be read.
//
// It owns these tests. A block that cannot be run says why in a comment before it, or with which
// engine it is run:
//
//	<!-- not run here: REASON -->
//	<!-- run with: docker -->
//
// A test that a REASON names must exist. Blocks with the info string text are no commands. The
// tests need root, Linux 5.19, and for commands of an engine this engine.
package docs
