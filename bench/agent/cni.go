package main

import (
	"bytes"
	"context"

	"github.com/tsugiki/tsugiki/internal/cni"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// connectBridge makes a container's network namespace, a link to the bridge and a
// port of the host's that leads to it.
func (n *node) connectBridge(ctx context.Context, c *container) (err error) {
	if c.ns, err = netns.New(); err != nil {
		return err
	}
	return n.bridge.Connect(ctx, c.link())
}

func (n *node) disconnectBridge(ctx context.Context, c *container) error {
	if err := n.bridge.Disconnect(ctx, c.link()); err != nil {
		return err
	}
	return c.ns.Close()
}

func (c *container) link() cni.Container {
	return cni.Container{ID: c.id, NS: c.ns, Ports: map[uint16]uint16{uint16(c.port): servedPort}}
}

// plugin runs a CNI plugin in the host's namespace.
func (n *node) plugin(ctx context.Context, plugin string, env []string, stdin []byte) ([]byte, error) {
	cmd := n.top.Host.Command(ctx, plugin)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = env
	return n.output(cmd)
}
