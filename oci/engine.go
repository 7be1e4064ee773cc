package oci

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// prefix is that of our annotations, and of labels that stand for some.
const prefix = "tsugiki.dev/"

// facts are what engines know of a container and say in ways of their own.
type facts struct {
	name        string
	annotations map[string]string // ours
	sandbox     bool              // it holds a pod's namespaces and runs nothing
	loopback    bool              // nothing but a loopback will be in its network namespace
}

// factsOf collects what is known of a container. What engines keep in files of their
// own is taken if it is there and looks right.
func factsOf(s *spec, id, bundle string) facts {
	f := facts{annotations: map[string]string{}}
	engine := docker(s, id)
	for key, value := range engine.Config.Labels {
		if strings.HasPrefix(key, prefix) {
			f.annotations[key] = value
		}
	}
	for key, value := range s.annotations {
		if strings.HasPrefix(key, prefix) {
			f.annotations[key] = value
		}
	}
	for _, key := range []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"} {
		f.sandbox = f.sandbox || s.annotations[key] == "sandbox"
	}
	names := []string{
		f.annotations[prefix+"name"], podName(s.annotations), s.annotations["nerdctl/name"],
		strings.TrimPrefix(engine.Name, "/"), podmanName(s, id, bundle), id[:min(len(id), 12)],
	}
	for _, name := range names {
		if f.name = legal(name); f.name != "" {
			break
		}
	}
	f.loopback = engine.networkMode == "none" || s.keepsToItself()
	return f
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

// nameMax is the longest name that a container may have.
const nameMax = 63

// legal makes a name of an engine's into one of ours: letters, digits, '_', '.' and
// '-', a letter or digit first.
func legal(name string) string {
	short := strings.TrimLeft(illegal.ReplaceAllString(name, "-"), "_.-")
	if len(short) > nameMax {
		sum := sha256.Sum256([]byte(name))
		short = fmt.Sprintf("%s-%x", short[:nameMax-9], sum[:4])
	}
	return short
}

// dockerContainer is what dockerd keeps in config.v2.json and hostconfig.json.
type dockerContainer struct {
	ID, Name    string
	Config      struct{ Labels map[string]string }
	networkMode string
}

// docker reads what dockerd knows of a container. Its config.json has neither name nor
// labels, but files are mounted from the folder that has.
func docker(s *spec, id string) dockerContainer {
	for _, m := range s.mounts {
		if m.Destination != "/etc/hostname" && m.Destination != "/etc/hosts" {
			continue
		}
		dir := filepath.Dir(m.Source)
		if !filepath.IsAbs(dir) || filepath.Base(dir) != id {
			continue
		}
		config, err := readFile(filepath.Join(dir, "config.v2.json"))
		if err != nil {
			continue
		}
		host, err := readFile(filepath.Join(dir, "hostconfig.json"))
		if err != nil {
			continue
		}
		if c, ok := parseDocker(config, host, id); ok {
			return c
		}
	}
	return dockerContainer{}
}

func parseDocker(config, host []byte, id string) (dockerContainer, bool) {
	var c dockerContainer
	var h struct{ NetworkMode string }
	if json.Unmarshal(config, &c) != nil || json.Unmarshal(host, &h) != nil || c.ID != id {
		return dockerContainer{}, false
	}
	c.networkMode = h.NetworkMode
	return c, true
}

// podmanName finds the name in the list that podman's storage keeps of its containers;
// the bundle is STORAGE/DRIVER-containers/ID/userdata.
func podmanName(s *spec, id, bundle string) string {
	dir := filepath.Dir(bundle)
	if s.annotations["io.container.manager"] != "libpod" || filepath.Base(dir) != id {
		return ""
	}
	data, err := readFile(filepath.Join(filepath.Dir(dir), "containers.json"))
	if err != nil {
		return ""
	}
	var list []struct {
		ID    string   `json:"id"`
		Names []string `json:"names"`
	}
	if json.Unmarshal(data, &list) != nil {
		return ""
	}
	for _, c := range list {
		if c.ID == id && len(c.Names) > 0 {
			return c.Names[0]
		}
	}
	return ""
}
