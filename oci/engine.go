package oci

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
)

// The engines, as the configuration calls them.
const (
	docker     = "docker"
	podman     = "podman"
	containerd = "containerd" // by ctr, or by another client
	nerdctl    = "nerdctl"
	kubernetes = "cri"
	other      = "other"
)

// facts are what engines know of a container and say in ways of their own.
//
// Whose words annotations are: docker's labels and podman's annotations are those of the
// image, over which those go that who starts the container gives. Which ones the image
// has is found in the engine's storage; the same value is taken for the image's. containerd's
// clients put nothing of an image into annotations, but into labels, which no runtime
// sees. Of another engine it is not known: tools that follow the image specification make
// annotations of an image's labels.
type facts struct {
	engine      string
	name        string            // by which the engine calls it
	annotations map[string]string // ours, of who starts the container
	unknown     []string          // keys of those that may be the image's
	image       []string          // keys of those that are the image's, and not in annotations
	sandbox     bool              // it holds a pod's namespaces and runs nothing
	loopback    bool              // nothing but a loopback will be in its network namespace
}

// words are annotations, or labels, that who starts a container and its image give
// together.
type words struct {
	given map[string]string
	// image tells whether the image has one of the same value. It is nil where that is
	// not known.
	image func(key, value string) bool
}

func nothing(string, string) bool { return false }

// add sorts words; later ones go over earlier ones of the same key.
func (f *facts) add(w words) {
	for _, key := range slices.Sorted(maps.Keys(w.given)) {
		if !strings.HasPrefix(key, api.AnnotationPrefix) {
			continue
		}
		is := func(k string) bool { return k == key }
		f.unknown, f.image = slices.DeleteFunc(f.unknown, is), slices.DeleteFunc(f.image, is)
		delete(f.annotations, key)
		value := w.given[key]
		if w.image != nil && w.image(key, value) {
			f.image = append(f.image, key)
			continue
		}
		f.annotations[key] = value
		if w.image == nil {
			f.unknown = append(f.unknown, key)
		}
	}
}

// factsOf collects what is known of a container. What engines keep in files of their
// own is taken if it is there and looks right.
func factsOf(s *spec, id, bundle string) (facts, error) {
	d, ofDocker := findDocker(s, id)
	stored, ofStorage := findStored(id, bundle)
	f := facts{annotations: map[string]string{}}
	f.engine = engineOf(s, id, bundle, ofDocker)
	if ofStorage {
		f.engine = stored.engine()
	}
	given := words{s.annotations, nothing}
	name := ""
	switch f.engine {
	case docker:
		if !ofDocker {
			return f, fmt.Errorf("what dockerd keeps of container %s is not found beside its files: its labels are not known; choose another runtime for it", id)
		}
		f.add(words{d.Config.Labels, d.imageLabels()})
		name = strings.TrimPrefix(d.Name, "/")
	case podman:
		name = stored.name()
	case nerdctl:
		name = s.annotations["nerdctl/name"]
	case kubernetes:
		if !ofStorage {
			name = podName(s.annotations)
		}
		for _, key := range []string{containerdType, "io.kubernetes.cri-o.ContainerType"} {
			f.sandbox = f.sandbox || s.annotations[key] == "sandbox"
		}
	case other:
		given.image = nil
	}
	if ofStorage {
		given.image = stored.imageAnnotations()
	}
	f.add(given)
	for _, n := range []string{name, id[:min(len(id), 12)]} {
		if f.name = legal(n); f.name != "" {
			break
		}
	}
	f.loopback = f.engine == docker && d.networkMode == "none" || s.keepsToItself()
	return f, nil
}

// containerdType is an annotation that containerd gives to all containers of pods, and
// to no other.
const containerdType = "io.kubernetes.cri.container-type"

// engineOf finds out which engine a container is of that is none of a storage (stored), by
// where its bundle is and, of containerd's, by annotations: no image brings some there. No
// annotation makes docker's containers those of another engine.
func engineOf(s *spec, id, bundle string, ofDocker bool) string {
	folder := filepath.Dir(bundle)
	if filepath.Base(bundle) != id || filepath.Base(filepath.Dir(folder)) != "io.containerd.runtime.v2.task" {
		if ofDocker {
			return docker
		}
		return other
	}
	_, inPod := s.annotations[containerdType]
	_, ofNerdctl := s.annotations["nerdctl/name"]
	switch {
	case filepath.Base(folder) == "moby", ofDocker && !inPod:
		return docker
	case ofDocker:
		return other // a pod that has mounted docker's files, or a container of docker's that says it is one
	case inPod:
		return kubernetes
	case ofNerdctl:
		return nerdctl
	}
	return containerd
}

// keepsToItself tells whether nobody is known to add interfaces to the container's
// network namespace.
func (s *spec) keepsToItself() bool {
	path, is := s.namespace(specs.NetworkNamespace)
	h := s.hooks
	//nolint:staticcheck // engines still use prestart hooks
	if !is || path != "" || len(h.Prestart)+len(h.CreateRuntime)+len(h.CreateContainer)+len(h.StartContainer)+len(h.Poststart) > 0 {
		return false
	}
	for key := range maps.Keys(s.annotations) {
		if strings.Contains(key, "cni") || strings.HasPrefix(key, "nerdctl/network") {
			return false
		}
	}
	return true
}

// podName is what Kubernetes calls a container.
func podName(annotations map[string]string) string {
	namespace, pod := annotations["io.kubernetes.cri.sandbox-namespace"], annotations["io.kubernetes.cri.sandbox-name"]
	container := annotations["io.kubernetes.cri.container-name"]
	if namespace == "" || pod == "" || container == "" {
		return ""
	}
	return namespace + "." + pod + "." + container
}

var illegal = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// legal makes a name of an engine's into one of ours: letters, digits, '_', '.' and
// '-', a letter or digit first.
func legal(name string) string {
	short := strings.TrimLeft(illegal.ReplaceAllString(name, "-"), "_.-")
	if len(short) > api.NameMax {
		sum := sha256.Sum256([]byte(name))
		short = fmt.Sprintf("%s-%x", short[:api.NameMax-9], sum[:4])
	}
	return short
}
