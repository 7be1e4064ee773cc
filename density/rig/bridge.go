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

// trackedFor is how long the kernel remembers a connection that has ended, instead of
// two minutes: thousands of short ones follow each other, and the table is full then.
const trackedFor = "1"

// FindPlugins finds the folder of the CNI plugins, and checks that what a bridge needs is
// installed.
func FindPlugins() (string, error) {
	dir, err := cni.Find()
	if missing := (*cni.MissingError)(nil); errors.As(err, &missing) {
		return "", fmt.Errorf("%s %w: install the package %s", missing.Program, ErrMissing, missing.Package)
	}
	return dir, err
}

// useBridge finds the plugins before the first container is connected.
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
			err = nil // the module comes with the first rule, and has its default
		}
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
	if err != nil {
		return fmt.Errorf("let the host forward: %w", err)
	}
	r.bridge = &cni.Network{Plugins: plugins, Data: filepath.Join(r.dir, "ipam"), Run: r.plugin}
	return nil
}

// plugin runs a CNI plugin in the namespace that has the bridge.
func (r *Rig) plugin(ctx context.Context, plugin string, env []string, stdin []byte) ([]byte, error) {
	cmd := r.command(ctx, plugin)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = env
	return r.bridged.output(ctx, cmd)
}

// link is the container as the plugins know it.
func (c *Container) link() cni.Container {
	l := cni.Container{ID: c.spec.Name, NS: c.net, Ports: make(map[uint16]uint16)}
	for own, host := range c.hostPorts {
		l.Ports[host] = own
	}
	return l
}
