package host

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
func PodsOf(ctx context.Context, socket string, handlers []string, program string) (names []string, err error) {
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
			names = podsOf(append(handlersOf(status, program), handlers...), sandboxes.Items, containers.Containers)
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

// handlersOf returns the handlers whose runtime is a program.
func handlersOf(status *cri.StatusResponse, program string) (names []string) {
	l, err := read(status)
	if err != nil {
		return nil // an answer need not have it
	}
	for name, r := range l.runtimes {
		if options, _ := r["options"].(map[string]any); options["BinaryName"] == program {
			names = append(names, name)
		}
	}
	return names
}
