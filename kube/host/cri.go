package host

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// KnowsHandler asks containerd at a socket whether it has the runtime of a RuntimeClass's handler.
func KnowsHandler(ctx context.Context, socket, handler string) (bool, error) {
	var known bool
	err := ask(socket, func(client cri.RuntimeServiceClient) error {
		status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
		if err == nil {
			known, err = hasHandler(status, handler)
		}
		return err
	})
	return known, err
}

// ask calls a function with a client of containerd at a socket.
func ask(socket string, questions func(cri.RuntimeServiceClient) error) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := questions(cri.NewRuntimeServiceClient(conn)); err != nil {
		return fmt.Errorf("ask containerd at %s: %w", socket, err)
	}
	return nil
}

// PodsOf asks containerd at a socket for the pods that need a program as their runtime: their sandbox runs,
// or one of their containers has not ended. It returns them as NAMESPACE/NAME. A pod may have no grafted
// container, and needs the program nevertheless: containerd's shim ends and deletes by it what it has made.
func PodsOf(ctx context.Context, socket, handler, program string) (names []string, err error) {
	err = ask(socket, func(client cri.RuntimeServiceClient) error {
		status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		sandboxes, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		containers, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
		if err == nil {
			names = podsOf(append(handlersOf(status, program), handler), sandboxes.Items, containers.Containers)
		}
		return err
	})
	return names, err
}

// podsOf lists the pods of some handlers that have not ended.
func podsOf(handlers []string, sandboxes []*cri.PodSandbox, containers []*cri.Container) (names []string) {
	lives := map[string]bool{}
	for _, c := range containers {
		lives[c.PodSandboxId] = lives[c.PodSandboxId] || c.State != cri.ContainerState_CONTAINER_EXITED
	}
	for _, s := range sandboxes {
		if slices.Contains(handlers, s.RuntimeHandler) && (s.State == cri.PodSandboxState_SANDBOX_READY || lives[s.Id]) {
			names = append(names, s.GetMetadata().GetNamespace()+"/"+s.GetMetadata().GetName())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// handlersOf reads the configuration in an answer: it returns the handlers whose runtime is a program.
func handlersOf(status *cri.StatusResponse, program string) (names []string) {
	var c struct {
		Containerd struct {
			Runtimes map[string]struct {
				Options map[string]any `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal([]byte(status.Info["config"]), &c) != nil {
		return nil // an answer need not have it
	}
	for name, r := range c.Containerd.Runtimes {
		if r.Options["BinaryName"] == program {
			names = append(names, name)
		}
	}
	return names
}

// hasHandler reads an answer. containerd lists its handlers from 2.0 on; its configuration is there
// before.
func hasHandler(status *cri.StatusResponse, handler string) (bool, error) {
	if list := status.RuntimeHandlers; len(list) > 0 {
		return slices.ContainsFunc(list, func(h *cri.RuntimeHandler) bool { return h.Name == handler }), nil
	}
	var c struct {
		Containerd struct {
			Runtimes map[string]any `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(status.Info["config"]), &c); err != nil {
		return false, fmt.Errorf("read the configuration that containerd tells: %w", err)
	}
	_, is := c.Containerd.Runtimes[handler]
	return is, nil
}
