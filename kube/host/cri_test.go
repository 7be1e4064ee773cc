package host

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeService is a containerd with pods.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	sandboxes  []*cri.PodSandbox
	containers []*cri.Container
}

func (s *runtimeService) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Info: map[string]string{"config": `{"containerd":{"runtimes":{
		"runc":{"options":null}, "tsugiki":{"options":{"BinaryName":"/opt/r"}}, "other":{"options":{"BinaryName":"/opt/r"}}}}}`}}, nil
}

func (s *runtimeService) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: s.sandboxes}, nil
}

func (s *runtimeService) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: s.containers}, nil
}

// A pod needs its runtime until its sandbox and its containers have ended, whatever is grafted.
func TestPodsOf(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &runtimeService{}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	add := func(name, handler string, sandbox cri.PodSandboxState, container cri.ContainerState) {
		s.sandboxes = append(s.sandboxes, &cri.PodSandbox{Id: name, Metadata: &cri.PodSandboxMetadata{Namespace: "n", Name: name}, RuntimeHandler: handler, State: sandbox})
		s.containers = append(s.containers, &cri.Container{PodSandboxId: name, State: container})
	}
	const ready, notReady = cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY
	add("of-runc", "runc", ready, cri.ContainerState_CONTAINER_RUNNING)
	add("of-the-default", "", ready, cri.ContainerState_CONTAINER_RUNNING)
	add("ended", "tsugiki", notReady, cri.ContainerState_CONTAINER_EXITED)
	for _, want := range [][]string{nil, {"n/sandbox-alone"}, {"n/container-alone", "n/sandbox-alone"}, {"n/container-alone", "n/of-another-name", "n/sandbox-alone"}} {
		got, err := PodsOf(t.Context(), socket, []string{"tsugiki"}, "/opt/r")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		switch len(want) {
		case 0:
			add("sandbox-alone", "tsugiki", ready, cri.ContainerState_CONTAINER_EXITED)
		case 1:
			add("container-alone", "tsugiki", notReady, cri.ContainerState_CONTAINER_UNKNOWN)
		case 2:
			add("of-another-name", "other", ready, cri.ContainerState_CONTAINER_RUNNING)
		}
	}
	if _, err := PodsOf(t.Context(), socket+".none", nil, "/opt/r"); err == nil {
		t.Error("nobody answers, and there is no error")
	}
}
