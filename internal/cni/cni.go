// Package cni connects containers to a bridge by the CNI plugins bridge, host-local and
// portmap, as engines do. The plugins make a pair of links, give it an address, masquerade
// what leaves the bridge, and redirect ports of the host to the container.
//
// It owns the plugins' configuration; libcni calls them. The caller owns the network
// namespaces: the one that stands for the host, and those of containers. The plugins need
// root, bridges and veth links in the kernel, and iptables.
package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// LinksMax is the highest number of links of one bridge (the kernel's BR_MAX_PORTS).
const LinksMax = 1023

// folders are where Debian and others install plugins.
var folders = []string{"/usr/lib/cni", "/opt/cni/bin"}

// MissingError names a program that is not installed, and the Debian package with it.
type MissingError struct{ Program, Package string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing: install the package %s", e.Program, e.Package)
}

// Find finds the folder of the plugins, and checks that the programs which they call are
// installed. An error is a MissingError.
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
	Data    string // a folder for the addresses that are taken, and for libcni's results
	// Run runs a plugin with its standard input and its environment, in the network
	// namespace that has the bridge. It returns what the plugin printed, also with an error.
	Run func(ctx context.Context, plugin string, env []string, stdin []byte) ([]byte, error)
}

// Container is one that is connected.
type Container struct {
	ID    string
	NS    *netns.NS
	Ports map[uint16]uint16 // of its own TCP ports, by the host's that lead to them
}

// NSPath is the path of a network namespace that this process has open.
func NSPath(ns *netns.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.File().Fd()) }

// Connect makes a link from the container's namespace to the bridge, and redirects the
// host's ports. After an error, Disconnect removes what was made.
func (n *Network) Connect(ctx context.Context, c Container) error {
	list, err := n.config(c)
	if err == nil {
		_, err = n.client().AddNetworkList(ctx, list, c.runtime())
	}
	return err
}

// Disconnect removes what Connect made.
func (n *Network) Disconnect(ctx context.Context, c Container) error {
	list, err := n.config(c)
	if err == nil {
		err = n.client().DelNetworkList(ctx, list, c.runtime())
	}
	return err
}

func (n *Network) client() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{n.Plugins}, n.Data, &executor{run: n.Run})
}

// object is a piece of CNI's configuration.
type object map[string]any

// config is the configuration of the plugins that a container needs: without ports it
// does not need portmap.
func (n *Network) config(c Container) (*libcni.NetworkConfigList, error) {
	plugins := []object{{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": object{
			"type": "host-local", "dataDir": n.Data,
			"ranges": [][]object{{{"subnet": "10.89.0.0/16"}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	if len(c.Ports) > 0 {
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{portMappings: true}})
	}
	text, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "tsugiki", "plugins": plugins})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// portMappings is the capability of portmap.
const portMappings = "portMappings"

// runtime is what the plugins are told about one container.
func (c *Container) runtime() *libcni.RuntimeConf {
	var ports []object
	for host, own := range c.Ports {
		ports = append(ports, object{"hostPort": host, "containerPort": own, "protocol": "tcp"})
	}
	return &libcni.RuntimeConf{
		ContainerID: c.ID, NetNS: NSPath(c.NS), IfName: "eth0",
		CapabilityArgs: map[string]any{portMappings: ports},
	}
}

// executor calls plugins for libcni.
type executor struct {
	version.PluginDecoder
	run func(ctx context.Context, plugin string, env []string, stdin []byte) ([]byte, error)
}

// ExecPlugin implements invoke.Exec.
func (e *executor) ExecPlugin(ctx context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	out, err := e.run(ctx, plugin, env, stdin)
	if err != nil {
		// Plugins write errors to standard output.
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return out, nil
}

// FindInPath implements invoke.Exec.
func (*executor) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}
