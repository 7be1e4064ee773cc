package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// pluginFolders are where CNI plugins are installed: by Debian, and by all others.
var pluginFolders = []string{"/usr/lib/cni", "/opt/cni/bin"}

func findPlugins() (string, error) {
	for _, dir := range pluginFolders {
		missing := false
		for _, name := range []string{"bridge", "host-local", "portmap"} {
			_, err := os.Stat(filepath.Join(dir, name))
			missing = missing || err != nil
		}
		if !missing {
			return dir, nil
		}
	}
	return "", &testkit.NeedsError{What: "the CNI plugins (Debian package containernetworking-plugins)"}
}

// object is a piece of CNI's configuration, or a result.
type object map[string]any

// connectBridge makes a container's network namespace, a link to the bridge and a
// port of the host's that leads to it.
func (n *node) connectBridge(ctx context.Context, c *container) error {
	var err error
	if c.ns, err = netns.New(); err != nil {
		return err
	}
	result, err := n.plugin(ctx, c, "ADD", n.bridgeConfig(nil))
	if err == nil {
		_, err = n.plugin(ctx, c, "ADD", c.portConfig(result))
	}
	return err
}

func (n *node) disconnectBridge(ctx context.Context, c *container) error {
	_, err := n.plugin(ctx, c, "DEL", c.portConfig(nil))
	if err == nil {
		_, err = n.plugin(ctx, c, "DEL", n.bridgeConfig(nil))
	}
	if err != nil {
		return err
	}
	return c.ns.Close()
}

func config(plugin string, previous object) object {
	o := object{"cniVersion": "1.0.0", "name": "bench", "type": plugin}
	if previous != nil {
		o["prevResult"] = previous
	}
	return o
}

func (n *node) bridgeConfig(previous object) object {
	o := config("bridge", previous)
	o["bridge"], o["isGateway"], o["ipMasq"], o["hairpinMode"] = "cni0", true, true, true
	o["ipam"] = object{
		"type": "host-local", "dataDir": filepath.Join(n.dir, "ipam"),
		"ranges": [][]object{{{"subnet": "10.89.0.0/16"}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
	}
	return o
}

func (c *container) portConfig(previous object) object {
	o := config("portmap", previous)
	o["capabilities"] = object{"portMappings": true}
	o["runtimeConfig"] = object{"portMappings": []object{{"hostPort": c.port, "containerPort": servedPort, "protocol": "tcp"}}}
	return o
}

// path is what the container's network namespace is found by.
func (c *container) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.ns.File().Fd())
}

// plugin calls a CNI plugin in the host's namespace.
func (n *node) plugin(ctx context.Context, c *container, command string, config object) (object, error) {
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := n.top.Host.Command(ctx, filepath.Join(n.plugins, config["type"].(string)))
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.path(),
		"CNI_IFNAME=eth0", "CNI_PATH="+n.plugins)
	out, err := n.output(cmd)
	if err != nil {
		return nil, err
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
