package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// bridge is how containers are connected as engines do it: by CNI's plugins bridge,
// host-local and portmap, which make a pair of links, give it an address, masquerade what
// leaves the bridge and have ports of the host's lead to the container's.
type bridge struct {
	plugins string // their folder
	data    string // where addresses are written down
}

// bridgeMax is how many links a bridge of the kernel's can have (BR_MAX_PORTS).
const bridgeMax = 1023

// pluginFolders are where CNI plugins are installed: by Debian, and by all others.
var pluginFolders = []string{"/usr/lib/cni", "/opt/cni/bin"}

// FindPlugins finds the folder of the CNI plugins, and checks that what a bridge needs is
// installed.
func FindPlugins() (string, error) {
	for _, dir := range pluginFolders {
		missing := false
		for _, name := range []string{"bridge", "host-local", "portmap"} {
			_, err := os.Stat(filepath.Join(dir, name))
			missing = missing || err != nil
		}
		if missing {
			continue
		}
		if _, err := exec.LookPath("iptables"); err != nil {
			return "", fmt.Errorf("iptables %w: install the package iptables", ErrMissing)
		}
		return dir, nil
	}
	return "", fmt.Errorf("a CNI plugin (bridge, host-local or portmap) %w: install the package containernetworking-plugins", ErrMissing)
}

// trackedFor is how long the kernel remembers a connection that has ended, instead of
// two minutes: thousands of short ones follow each other, and the table is full then.
const trackedFor = "1"

// useBridge finds the plugins before the first container is connected.
func (r *Rig) useBridge() (*bridge, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bridge == nil {
		plugins, err := FindPlugins()
		if err != nil {
			return nil, err
		}
		err = r.bridged.do(func() error {
			err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", []byte(trackedFor), 0)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil // the module comes with the first rule, and has its default
			}
			return errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
		})
		if err != nil {
			return nil, fmt.Errorf("let the host forward: %w", err)
		}
		r.bridge = &bridge{plugins: plugins, data: filepath.Join(r.dir, "ipam")}
	}
	return r.bridge, nil
}

// object is a piece of CNI's configuration, or a result.
type object map[string]any

func cniConfig(plugin string, previous object) object {
	o := object{"cniVersion": "1.0.0", "name": "density", "type": plugin}
	if previous != nil {
		o["prevResult"] = previous
	}
	return o
}

func (b *bridge) config() object {
	o := cniConfig("bridge", nil)
	o["bridge"], o["isGateway"], o["ipMasq"], o["hairpinMode"] = "cni0", true, true, true
	o["ipam"] = object{
		"type": "host-local", "dataDir": b.data,
		"ranges": [][]object{{{"subnet": "10.89.0.0/16"}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
	}
	return o
}

func (c *Container) portConfig(previous object) object {
	o := cniConfig("portmap", previous)
	o["capabilities"] = object{"portMappings": true}
	var list []object
	for _, port := range c.spec.Ports {
		list = append(list, object{"hostPort": c.hostPorts[port], "containerPort": port, "protocol": "tcp"})
	}
	o["runtimeConfig"] = object{"portMappings": list}
	return o
}

// nsPath is what a namespace is found by as long as this process has it open.
func nsPath(ns *netns.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd()) }

// connect makes the container's network namespace, a link to the bridge and what leads
// to its ports.
func (b *bridge) connect(ctx context.Context, c *Container) (err error) {
	if c.net, err = netns.New(); err != nil {
		return err
	}
	result, err := b.plugin(ctx, c, "ADD", b.config())
	if err != nil {
		return err
	}
	c.connected = true
	if len(c.spec.Ports) > 0 {
		_, err = b.plugin(ctx, c, "ADD", c.portConfig(result))
	}
	return err
}

func (b *bridge) disconnect(ctx context.Context, c *Container) error {
	var errs []error
	if c.connected && len(c.spec.Ports) > 0 {
		_, err := b.plugin(ctx, c, "DEL", c.portConfig(nil))
		errs = append(errs, err)
	}
	if c.connected {
		_, err := b.plugin(ctx, c, "DEL", b.config())
		errs = append(errs, err)
		c.connected = false
	}
	return errors.Join(errs...)
}

// plugin calls a CNI plugin in the namespace that has the bridge.
func (b *bridge) plugin(ctx context.Context, c *Container, command string, config object) (object, error) {
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := c.rig.command(ctx, filepath.Join(b.plugins, config["type"].(string)))
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+command, "CNI_CONTAINERID="+c.spec.Name, "CNI_NETNS="+nsPath(c.net),
		"CNI_IFNAME=eth0", "CNI_PATH="+b.plugins)
	out, err := c.rig.bridged.output(ctx, cmd)
	if err != nil {
		// Plugins complain on standard output.
		return nil, fmt.Errorf("%w%s", err, complaint(out))
	}
	if command == "DEL" {
		return nil, nil
	}
	var result object
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("read the result of %s: %w", config["type"], err)
	}
	return result, nil
}
