// Package cni connects containers as engines do it: by CNI's plugins bridge, host-local
// and portmap, which make a pair of links, give it an address, masquerade what leaves the
// bridge and have ports of the host's lead to the container's.
//
// It owns their configuration and how they are called. The network namespaces, the one
// that stands for the host and those of containers, are the caller's. The plugins need
// root, bridges and veth links in the kernel, and iptables.
package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// LinksMax is how many links a bridge of the kernel's can have (BR_MAX_PORTS).
const LinksMax = 1023

// folders are where plugins are installed: by Debian, and by all others.
var folders = []string{"/usr/lib/cni", "/opt/cni/bin"}

// MissingError names a program that is not installed, and the Debian package with it.
type MissingError struct{ Program, Package string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing: install the package %s", e.Program, e.Package)
}

// Find finds the folder of the plugins, and checks that all that they need is installed.
// An error is a MissingError.
func Find() (string, error) {
	if _, err := exec.LookPath("iptables"); err != nil {
		return "", &MissingError{"iptables", "iptables"}
	}
	for _, dir := range folders {
		missing := false
		for _, name := range []string{"bridge", "host-local", "portmap"} {
			_, err := os.Stat(filepath.Join(dir, name))
			missing = missing || err != nil
		}
		if !missing {
			return dir, nil
		}
	}
	return "", &MissingError{"a CNI plugin (bridge, host-local or portmap)", "containernetworking-plugins"}
}

// Network is a bridge to which containers are connected.
type Network struct {
	Plugins string // the folder of Find
	Data    string // a folder, where addresses are written down
	// Run runs a plugin, with its input and these variables added to the environment, in
	// the network namespace that has the bridge, and returns what it printed.
	Run func(ctx context.Context, plugin string, env []string, stdin *bytes.Reader) ([]byte, error)
}

// Container is one that is connected.
type Container struct {
	ID    string
	NS    *netns.NS
	Ports map[uint16]uint16 // of its own TCP ports, by the host's that lead to them
}

// NSPath is what a network namespace is found by as long as this process has it open.
func NSPath(ns *netns.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd()) }

// Connect makes a link from the container's namespace to the bridge, and what leads to
// its ports. After an error Disconnect removes what was made.
func (n *Network) Connect(ctx context.Context, c Container) error {
	result, err := n.call(ctx, c, "ADD", n.bridge())
	if err == nil && len(c.Ports) > 0 {
		_, err = n.call(ctx, c, "ADD", c.portmap(result))
	}
	return err
}

// Disconnect removes what Connect has made.
func (n *Network) Disconnect(ctx context.Context, c Container) error {
	var errs []error
	if len(c.Ports) > 0 {
		_, err := n.call(ctx, c, "DEL", c.portmap(nil))
		errs = append(errs, err)
	}
	_, err := n.call(ctx, c, "DEL", n.bridge())
	return errors.Join(append(errs, err)...)
}

// object is a piece of CNI's configuration, or a result.
type object map[string]any

func config(plugin string, previous object) object {
	o := object{"cniVersion": "1.0.0", "name": "tsugiki", "type": plugin}
	if previous != nil {
		o["prevResult"] = previous
	}
	return o
}

func (n *Network) bridge() object {
	o := config("bridge", nil)
	o["bridge"], o["isGateway"], o["ipMasq"], o["hairpinMode"] = "cni0", true, true, true
	o["ipam"] = object{
		"type": "host-local", "dataDir": n.Data,
		"ranges": [][]object{{{"subnet": "10.89.0.0/16"}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
	}
	return o
}

func (c *Container) portmap(previous object) object {
	o := config("portmap", previous)
	o["capabilities"] = object{"portMappings": true}
	var list []object
	for host, own := range c.Ports {
		list = append(list, object{"hostPort": host, "containerPort": own, "protocol": "tcp"})
	}
	o["runtimeConfig"] = object{"portMappings": list}
	return o
}

func (n *Network) call(ctx context.Context, c Container, command string, config object) (object, error) {
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	plugin := config["type"].(string)
	out, err := n.Run(ctx, filepath.Join(n.Plugins, plugin), []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c.ID, "CNI_NETNS=" + NSPath(c.NS), "CNI_IFNAME=eth0", "CNI_PATH=" + n.Plugins,
	}, bytes.NewReader(stdin))
	if err != nil {
		// Plugins complain on standard output.
		return nil, fmt.Errorf("CNI plugin %s: %w: %s", plugin, err, bytes.TrimSpace(out))
	}
	if command == "DEL" {
		return nil, nil
	}
	var result object
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("read the result of CNI plugin %s: %w", plugin, err)
	}
	return result, nil
}
