package host

import (
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Without a table, the name alone counts.
func TestNamesLoaded(t *testing.T) {
	for name, tt := range map[string]struct {
		status *cri.StatusResponse
		want   bool
		err    bool
	}{
		"containerd 1.6":         {&cri.StatusResponse{Info: map[string]string{"config": `{"containerd":{"runtimes":{"runc":{},"tsugiki":{"runtimeType":"io.containerd.runc.v2"}}}}`}}, true, false},
		"containerd 1.6 without": {&cri.StatusResponse{Info: map[string]string{"config": `{"containerd":{"runtimes":{"runc":{}}}}`}}, false, false},
		"containerd 2":           {&cri.StatusResponse{RuntimeHandlers: []*cri.RuntimeHandler{{Name: ""}, {Name: "tsugiki"}}}, true, false},
		"containerd 2 without":   {&cri.StatusResponse{RuntimeHandlers: []*cri.RuntimeHandler{{Name: "runc"}}}, false, false},
		"nothing":                {&cri.StatusResponse{}, false, true},
	} {
		got, err := notLoaded(tt.status, map[string]map[string]any{"tsugiki": nil})
		if (len(got) == 0) != (tt.want || tt.err) || (err != nil) != tt.err {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// answer is what containerd 1.6.20 says of a runtime, shortened.
const answer = `{"containerd":{"runtimes":{"tsugiki":{"runtimeType":"io.containerd.runc.v2","runtimePath":"","PodAnnotations":["tsugiki.dev/*"],
	"ContainerAnnotations":["tsugiki.dev/*"],"runtimeRoot":"","options":{"BinaryName":"/opt/r","SystemdCgroup":true,"IoUid":7},
	"privileged_without_host_devices":false,"cgroupWritable":true,"baseRuntimeSpec":"","cniConfDir":"/etc/x","cniMaxConfNum":1}}}}`

const table = `runtime_type = "io.containerd.runc.v2"
pod_annotations = ["tsugiki.dev/*"]
container_annotations = ["tsugiki.dev/*"]
cni_conf_dir = "/etc/x"
cni_max_conf_num = 1
cgroup_writable = true
snapshotter = "not known to this containerd"
[options]
BinaryName = "/opt/r"
SystemdCgroup = true
IoUid = 7
`

// The tables of the file and of containerd are compared key by key.
func TestTablesLoaded(t *testing.T) {
	for change, want := range map[string]bool{
		"": true,
		"SystemdCgroup = true -> NoPivotRoot = false\nSystemdCgroup = true":                     true,
		"cni_max_conf_num = 1 -> privileged_without_host_devices = false\ncni_max_conf_num = 1": true,
		"SystemdCgroup = true -> SystemdCgroup = false":                                         false,
		"SystemdCgroup = true -> ":                                                              false,
		"cgroup_writable = true -> cgroup_writable = false":                                     false,
		"/opt/r -> /usr/bin/r":                                                                  false,
		"IoUid = 7 -> IoUid = 8":                                                                false,
		"IoUid = 7 -> IoUid = 7\nIoGid = 7":                                                     false,
		`cni_conf_dir = "/etc/x" -> `:                                                           false,
		"cni_max_conf_num = 1 -> base_runtime_spec = \"/a.json\"\ncni_max_conf_num = 1":         false,
		`["tsugiki.dev/*"] -> ["*"]`:                                                            false,
	} {
		text := table
		if old, now, is := strings.Cut(change, " -> "); is {
			text = strings.ReplaceAll(table, old, now)
		}
		var file map[string]any
		if err := toml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		got, err := notLoaded(&cri.StatusResponse{Info: map[string]string{"config": answer}}, map[string]map[string]any{"tsugiki": file, "other": nil})
		if expect := []string{"other", "tsugiki"}; err != nil || want && !slices.Equal(got, expect[:1]) || !want && !slices.Equal(got, expect) {
			t.Errorf("%s: %v, %v", change, got, err)
		}
	}
}

// What containerd answers is not ours: whatever it is, it is no panic.
func FuzzLoaded(f *testing.F) {
	f.Add(answer)
	f.Add(`{"containerd":{"runtimes":{"tsugiki":{"options":{"BinaryName":{}}}}}}`)
	var file map[string]any
	if err := toml.Unmarshal([]byte(table), &file); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, config string) {
		status := &cri.StatusResponse{Info: map[string]string{"config": config}}
		names, err := notLoaded(status, map[string]map[string]any{"tsugiki": file})
		if err != nil && len(names) > 0 {
			t.Errorf("%v, and an error: %v", names, err)
		}
		handlersOf(status, "/opt/r")
	})
}
