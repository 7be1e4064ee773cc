package oci

import (
	"encoding/json"

	"github.com/tsugiki/tsugiki/api"
)

// crioPod is what CRI-O's storage says of a container's pod.
type crioPod struct {
	api.Pod
	sandbox bool // the container is the pod's sandbox
}

// podIn returns the pod of a container in the lists of its storage. All of it is CRI-O's own: it stores
// what the kubelet asks for, and nothing of an image or of a pod's annotations. The annotations of a
// bundle do not count. CRI-O gives each container those of the pod, and writes the pod's annotations
// over its own into the bundle of a sandbox (1.36, server/sandbox_run_linux.go).
//
// The lists are those of containers/storage, with metadata of CRI-O's RuntimeContainerMetadata
// (internal/storage/runtime.go). Only that of a sandbox has the UID and the namespace.
func podIn(all []stored, c stored) crioPod {
	m, is := c.crio()
	if !is {
		return crioPod{}
	}
	p := crioPod{api.Pod{Sandbox: m.PodID}, m.Pod}
	if !m.Pod {
		p.Container = m.Name
	}
	if box, found := inStorage(all, m.PodID); found {
		if m, is := box.crio(); is && m.Pod && m.PodID == box.ID {
			p.Namespace, p.Name, p.UID = m.Namespace, m.Name, m.UID
		}
	}
	return p
}

type crioMetadata struct {
	PodID     string `json:"pod-id"`        // of the sandbox
	Name      string `json:"metadata-name"` // of the container, or of the pod if it is a sandbox
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Pod       bool   `json:"pod"` // it is a sandbox
}

// crio returns the metadata of a container of CRI-O.
func (c stored) crio() (m crioMetadata, is bool) {
	if json.Unmarshal([]byte(c.Metadata), &m) != nil {
		return crioMetadata{}, false
	}
	return m, m.PodID != ""
}

// full returns the pod of a container that is no sandbox. nil: the storage does not name all of it.
func (p crioPod) full() *api.Pod {
	if p.sandbox || p.Namespace == "" || p.Name == "" || p.UID == "" || p.Container == "" {
		return nil
	}
	return &p.Pod
}
