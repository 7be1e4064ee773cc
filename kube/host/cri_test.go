package host

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestHasHandler(t *testing.T) {
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
		got, err := hasHandler(tt.status, "tsugiki")
		if got != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
