package discover

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A pod's logs. containerd writes the log of a pod's container itself, to a path that the
// kubelet has chosen: DIRECTORY/NAME/ATTEMPT.log. No id is in it. The directory is told to the
// runtime with the sandbox, and the container's name with the container, as annotations of
// their specs. containerd writes both annotations over what a pod asks for. The directory is one
// pod's, so what a pod calls its containers changes nothing of others' charges.
const (
	logDirectoryAnnotation = "io.kubernetes.cri.sandbox-log-directory"
	sandboxAnnotation      = "io.kubernetes.cri.sandbox-id"
	nameAnnotation         = "io.kubernetes.cri.container-name"
)

// specMax is the size from which on a runtime's spec is not read.
const specMax = 8 << 20

// pod is where the log of a pod's container is.
type pod struct {
	logs identity // the directory; zero: it is in no pod
	name string   // of the container
}

// podOf reads it from the specs beside that of the shim, whose working directory has its own.
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

// annotations are those of a runtime's spec, if it can be read.
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

// byLogs are the containers of pods by directory of logs.
func byLogs(all map[string]*found) map[identity][]*found {
	pods := map[identity][]*found{}
	for _, f := range all {
		if f.pod.name != "" {
			pods[f.pod.logs] = append(pods[f.pod.logs], f)
		}
	}
	return pods
}

// loggedTo finds the containers whose log a file may be, by the path that a process has it
// open with: NAME/ATTEMPT.log, when the directory is the container's alone, or NAME.log.
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
