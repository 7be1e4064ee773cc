package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/cni"
)

// trackedFor is how long the kernel remembers a closed connection. The default is two minutes:
// thousands of short connections would fill the table.
const trackedFor = "1"

// FindPlugins finds the folder of the CNI plugins, and checks that the programs for a bridge are
// installed.
func FindPlugins() (string, error) {
	dir, err := cni.Find()
	if missing := (*cni.MissingError)(nil); errors.As(err, &missing) {
		return "", fmt.Errorf("%s %w: install the package %s", missing.Program, ErrMissing, missing.Package)
	}
	return dir, err
}

// useBridge finds the plugins for the first container behind the bridge.
func (r *Rig) useBridge() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bridge != nil {
		return nil
	}
	plugins, err := FindPlugins()
	if err != nil {
		return err
	}
	err = r.bridged.do(func() error {
		err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", []byte(trackedFor), 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the module is loaded with the first rule, and has its default
		}
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
	if err != nil {
		return fmt.Errorf("let the host forward: %w", err)
	}
	r.bridge = &cni.Network{Plugins: plugins, Data: filepath.Join(r.dir, "ipam"), Run: r.plugin}
	return nil
}

// plugin runs a CNI plugin in the bridge's network namespace.
func (r *Rig) plugin(ctx context.Context, plugin string, env []string, stdin []byte) ([]byte, error) {
	cmd := r.command(ctx, plugin)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = env
	return r.bridged.output(ctx, cmd)
}

// link returns the description of the container for the plugins.
func (c *Container) link() cni.Container {
	l := cni.Container{ID: c.spec.Name, NS: c.net, Ports: make(map[uint16]uint16)}
	for own, host := range c.hostPorts {
		l.Ports[host] = own
	}
	return l
}
