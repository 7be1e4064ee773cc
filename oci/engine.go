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

// Names of engines in the configuration.
const (
	docker     = "docker"
	podman     = "podman"
	containerd = "containerd" // used by ctr or another client
	nerdctl    = "nerdctl"
	kubernetes = "cri"
	other      = "other"
)

// facts has what an engine knows of a container. Each engine stores this in its own way.
//
// Annotations come from the user who starts the container, or from the image. Docker's labels
// and Podman's annotations are those of the image, replaced by those of the user. The engine's
// storage tells which ones the image has; one with the same value counts as the image's.
// Clients of containerd put labels of an image into labels, which no runtime sees. For other
// engines the origin is unknown: tools that follow the image specification make annotations
// of an image's labels.
type facts struct {
	engine      string
	name        string            // the engine's name of the container
	annotations map[string]string // Tsugiki's, of the user who starts the container
	unknown     []string          // keys of annotations that may be the image's
	image       []string          // keys that are the image's, and not in annotations
	sandbox     bool              // the container has only the namespaces of a pod
	loopback    bool              // its network namespace has, and will have, only a loopback
	published   []string          // ports of the container: PORT/PROTOCOL
	pod         *api.Pod          // of Kubernetes; nil: it is in none, or its engine does not say in which
}

// words are the annotations or labels of a container, from the user and from the image.
type words struct {
	given map[string]string
	// image reports whether the image has the key with the same value. nil: it is unknown.
	image func(key, value string) bool
}

func nothing(string, string) bool { return false }

// add sorts words by their origin. Later words replace earlier ones with the same key.
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

// factsOf collects the facts of a container. It reads files of engines if they exist and have
// the expected content.
func factsOf(s *spec, id, bundle string) (facts, error) {
	d, ofDocker := findDocker(s, id)
	stored, ofStorage := findStored(s, id, bundle)
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
			return f, fmt.Errorf("dockerd's files of container %s are not found, so its labels are not known; choose another runtime for it", id)
		}
		f.add(words{d.Config.Labels, d.imageLabels()})
		name = strings.TrimPrefix(d.Name, "/")
		f.published = d.published
	case podman:
		name = stored.name()
	case nerdctl:
		name = s.annotations["nerdctl/name"]
	case kubernetes:
		if ofStorage {
			f.pod, f.sandbox = stored.pod.full(), stored.pod.sandbox
			name = PodContainer(&stored.pod.Pod)
			break
		}
		p := podOf(s.annotations)
		name, f.sandbox = PodContainer(&p), s.annotations[containerdType] == "sandbox"
		if p.UID != "" && name != "" {
			f.pod = &p
		}
	case other:
		// A pod may replace the annotation in the bundle of its sandbox, and not the bundle's folder.
		if s.annotations["io.container.manager"] == "cri-o" || isStored(id, bundle) {
			return f, fmt.Errorf("no storage of Podman or CRI-O has container %s, so its pod is not known; choose another runtime for it", id)
		}
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
	switch f.loopback = s.keepsToItself(); {
	case f.engine == docker:
		// Since Docker 29, no hook says that dockerd will add interfaces.
		f.loopback = d.networkMode == "none"
	case f.pod != nil && !f.sandbox:
		f.loopback = f.loopback || s.joinsLoopback()
	}
	return f, nil
}

// containerdType is an annotation that containerd gives to the containers of pods only.
const containerdType = "io.kubernetes.cri.container-type"

// engineOf finds the engine of a container that is not in a containers/storage (see stored). It
// uses the folder of the bundle and, for containerd, annotations that no image can have. No
// annotation makes a container of Docker one of another engine.
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
		return other // a pod with a mount of docker's files, or a container of docker with a pod's annotation
	case inPod:
		return kubernetes
	case ofNerdctl:
		return nerdctl
	}
	return containerd
}

// keepsToItself reports whether the spec names nothing that adds interfaces to the container's
// network namespace: no path, no hook and no annotation of CNI.
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

// podOf returns the pod of a container of containerd's CRI, which writes these annotations itself,
// over those of the pod's author. Versions before 1.6 have no UID.
func podOf(annotations map[string]string) api.Pod {
	const prefix = "io.kubernetes.cri."
	return api.Pod{
		Namespace: annotations[prefix+"sandbox-namespace"], Name: annotations[prefix+"sandbox-name"],
		UID: annotations[prefix+"sandbox-uid"], Container: annotations[prefix+"container-name"], Sandbox: annotations[prefix+"sandbox-id"],
	}
}

var illegal = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// legal changes an engine's name to one that the agent accepts: letters, digits, '_', '.' and
// '-', with a letter or digit first.
func legal(name string) string {
	short := strings.TrimLeft(illegal.ReplaceAllString(name, "-"), "_.-")
	if len(short) > api.NameMax {
		sum := sha256.Sum256([]byte(name))
		short = fmt.Sprintf("%s-%x", short[:api.NameMax-9], sum[:4])
	}
	return short
}
