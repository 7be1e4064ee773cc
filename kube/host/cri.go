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
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return false, fmt.Errorf("ask containerd at %s: %w", socket, err)
	}
	return hasHandler(status, handler)
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
