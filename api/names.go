package api

import "path/filepath"

// Names that the agent, tsugiki-runtime, and whoever starts containers agree on.
const (
	// AnnotationPrefix is that of our annotations, and of labels that stand for some.
	AnnotationPrefix = "tsugiki.dev/"
	// The annotations: what a container is called, and what it is given.
	AnnotationName      = AnnotationPrefix + "name"
	AnnotationMode      = AnnotationPrefix + "mode"
	AnnotationEndpoints = AnnotationPrefix + "endpoints"
	AnnotationIngress   = AnnotationPrefix + "ingress"
	AnnotationEgress    = AnnotationPrefix + "egress"

	// NameMax is the longest name of a container, in bytes.
	NameMax = 63

	// AgentName is the name of the daemon's own files in its run directory.
	AgentName = "agent"
)

// SocketIn is the daemon's socket in its run directory.
func SocketIn(runDir string) string { return filepath.Join(runDir, AgentName+".sock") }
