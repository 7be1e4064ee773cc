package discover

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The logs of pods. containerd itself writes the log of a pod's container, to a path that the
// kubelet has chosen: DIRECTORY/NAME/ATTEMPT.log. The path contains no id. Annotations in the
// runtime's specs have both parts: the sandbox's spec has the directory, and the container's spec
// has the container's name. A pod cannot choose these annotations: containerd overwrites them. A
// directory belongs to one pod. So the names that a pod gives to its containers do not change what
// other pods are charged.
const (
	logDirectoryAnnotation = "io.kubernetes.cri.sandbox-log-directory"
	sandboxAnnotation      = "io.kubernetes.cri.sandbox-id"
	nameAnnotation         = "io.kubernetes.cri.container-name"
)

// specMax is the number of bytes that are read of a runtime's spec.
const specMax = 8 << 20

// pod is the place of the log of a pod's container.
type pod struct {
	logs identity // the log directory; zero: the container is in no pod
	name string   // of the container
}

// podOf reads the place of a container's log from the runtime's specs. Each spec is in a directory
// beside the shim's working directory.
func (s *Scanner) podOf(f *found) pod {
	for _, h := range f.Helpers {
		if h.Kind != Shim {
			continue
		}
		shim := s.table[h.PID]
		bundles := shim.path("cwd") + "/../"
		own := annotations(bundles + f.ID + "/config.json")
		name, sandbox := own[nameAnnotation], validID(own[sandboxAnnotation])
		if name == "" || sandbox == "" {
			continue
		}
		dir := annotations(bundles + sandbox + "/config.json")[logDirectoryAnnotation]
		if logs, _, err := identify(shim.path("root") + "/" + dir); err == nil && dir != "" {
			return pod{logs, name}
		}
	}
	return pod{}
}

// annotations returns the annotations of a runtime's spec, or nil if the spec cannot be read.
func annotations(file string) map[string]string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(io.LimitReader(f, specMax)).Decode(&spec); err != nil {
		return nil
	}
	return spec.Annotations
}

// byLogs returns the containers of pods by their log directory.
func byLogs(all map[string]*found) map[identity][]*found {
	pods := map[identity][]*found{}
	for _, f := range all {
		if f.pod.name != "" {
			pods[f.pod.logs] = append(pods[f.pod.logs], f)
		}
	}
	return pods
}

// loggedTo finds the containers whose log a file may be, by the path of the open file. The path is
// NAME/ATTEMPT.log, in a directory of the container alone, or NAME.log.
func loggedTo(root, path string, pods map[identity][]*found) (some []*found, directory bool) {
	if len(pods) == 0 || !strings.HasSuffix(path, ".log") {
		return nil, false
	}
	dir := filepath.Dir(path)
	if id, _, err := identify(root + filepath.Dir(dir)); err == nil {
		for _, f := range pods[id] {
			if filepath.Base(dir) == f.pod.name {
				some = append(some, f)
			}
		}
	}
	if len(some) > 0 {
		return some, true
	}
	if id, _, err := identify(root + dir); err == nil {
		for _, f := range pods[id] {
			if strings.HasPrefix(filepath.Base(path), f.pod.name+".") {
				some = append(some, f)
			}
		}
	}
	return some, false
}
