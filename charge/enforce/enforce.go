// Package enforce takes CPU time that others spend for a container out of the
// container's CPU quota.
package enforce
