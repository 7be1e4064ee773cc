package api

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Names that the agent, tsugiki-runtime and starters of containers share.
const (
	// AnnotationPrefix is the prefix of our annotations, and of labels with the same meaning.
	AnnotationPrefix = "tsugiki.dev/"
	// The annotations: a container's name, its rules, and the translation of its IPv4.
	AnnotationName      = AnnotationPrefix + "name"
	AnnotationMode      = AnnotationPrefix + "mode"
	AnnotationEndpoints = AnnotationPrefix + "endpoints"
	AnnotationIngress   = AnnotationPrefix + "ingress"
	AnnotationEgress    = AnnotationPrefix + "egress"
	AnnotationNameRules = AnnotationPrefix + "name-rules"
	AnnotationTranslate = AnnotationPrefix + "translate"
	AnnotationIPv6      = AnnotationPrefix + "ipv6"
	AnnotationDNS       = AnnotationPrefix + "dns"
	AnnotationFTP       = AnnotationPrefix + "ftp"
	AnnotationSIP       = AnnotationPrefix + "sip"

	// AnnotationGraft is an annotation of Kubernetes' pods. "true" says that a pod is grafted where
	// tsugiki-nri runs, and says nothing about its rules.
	AnnotationGraft = "kube.tsugiki.dev/graft"

	// NameMax is the longest name of a container, in bytes.
	NameMax = 63

	// AgentName is the name of the daemon's own files in its run directory.
	AgentName = "agent"

	// RunDir is the directory for the records of running containers.
	RunDir = "/run/tsugiki"

	socketSuffix = ".sock"
	// ListenerSocket takes the listeners of containers' filters, in the daemon's run directory.
	ListenerSocket = "seccomp" + socketSuffix
)

// EndedDir returns the directory of the states of containers that ended while no daemon ran. Who
// writes there has the daemon's lock, and so in AgainDir.
func EndedDir(runDir string) string { return filepath.Join(runDir, "runtime", "ended") }

// AgainDir returns the directory of notes about containers that were started again while no daemon
// ran. The file of a container's name has its id.
func AgainDir(runDir string) string { return filepath.Join(runDir, "runtime", "again") }

// SocketIn returns the path of the daemon's socket in its run directory.
func SocketIn(runDir string) string { return filepath.Join(runDir, AgentName+socketSuffix) }

// ErrName says that a container's name cannot be used.
var ErrName = errors.New("bad container name")

// CheckName returns an ErrName unless a container can have a name.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > NameMax || !alphanumeric(rune(name[0])) || strings.ContainsFunc(name, unfit) {
		return fmt.Errorf("%w %q: letters, digits, '_', '.' and '-', at most %d, a letter or digit first", ErrName, name, NameMax)
	}
	if name == AgentName || name+socketSuffix == ListenerSocket {
		return fmt.Errorf("%w %q: it is one of the agent's own", ErrName, name)
	}
	return nil
}

func alphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

func unfit(r rune) bool { return !alphanumeric(r) && !strings.ContainsRune("_.-", r) }
