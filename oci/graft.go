package oci

import (
	"fmt"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/shim"
)

// # What a grafted container gets
//
// This runtime writes it into a bundle. The plugin of NRI (kube/nri) has containerd write it.

// Compose returns the seccomp profile of a container that the agent has registered: the engine's
// profile, which nil stands for if it confines nothing, with the calls trapped that the agent asks for.
// It returns filter.ErrProfile for a profile that would not stay in force.
func Compose(profile *specs.LinuxSeccomp, r api.Registered) (*specs.LinuxSeccomp, error) {
	mode, known := filter.ParseMode(r.Filter.Mode)
	if !known {
		return nil, fmt.Errorf("the agent's answer has the unknown mode %q", r.Filter.Mode)
	}
	options := filter.Options{
		Mode: mode, Datagrams: r.Filter.Datagrams, AFGraft: r.Filter.AFGraft, Untrapped: r.Filter.Untrapped, Accepts: r.Filter.Accepts,
		Translated: r.Filter.Translated,
	}
	return filter.Compose(profile, options, r.Listener, r.Token)
}

// LibraryMount returns the mount of the library's folder, which is at a path of the host, in a container
// with these mounts, and the path at which its programs load the library.
func LibraryMount(folder string, mounts []specs.Mount) (m specs.Mount, preload string) {
	at := libraryInRun
	for _, m := range mounts {
		if filepath.Clean(m.Destination) == "/dev" && m.Type == "tmpfs" {
			at = libraryInDev
		}
	}
	m = specs.Mount{Destination: at, Type: "bind", Source: folder, Options: []string{"bind", "ro", "nosuid", "nodev"}}
	return m, filepath.Join(at, shim.LibraryFile)
}

// PodContainer is the name that a container of a pod has in the agent. Empty: the pod is not known.
func PodContainer(p *api.Pod) string {
	if p.Namespace == "" || p.Name == "" || p.Container == "" {
		return ""
	}
	return legal(p.Namespace + "." + p.Name + "." + p.Container)
}
