package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/connect"
	"github.com/tsugiki/tsugiki/kube/grant"
)

type options struct {
	kubeconfig, metrics, probes string
	agent, namespace            string
	classes                     list
	node                        grant.Node
	level                       slog.Level
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

func parse(command string, args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "")
	f.StringVar(&o.metrics, "metrics", "0", "")
	f.StringVar(&o.probes, "probes", "0", "")
	f.TextVar(&o.level, "log-level", slog.LevelInfo, "")
	ips := ""
	if command == "node" {
		f.StringVar(&o.agent, "agent", api.DefaultSocket, "")
		f.StringVar(&o.node.Name, "node", os.Getenv("NODE_NAME"), "")
		f.StringVar(&ips, "node-ips", os.Getenv("NODE_IPS"), "")
		f.Var(&o.classes, "runtime-class", "")
	} else {
		f.StringVar(&o.namespace, "namespace", "tsugiki", "")
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if command != "node" {
		return o, nil
	}
	if len(o.classes) == 0 {
		o.classes = list{"tsugiki"}
	}
	if o.node.Name == "" {
		return nil, errors.New("--node is missing: the name of this node")
	}
	return o, o.addresses(ips)
}

// addresses reads the node's addresses. The first one of each family counts.
func (o *options) addresses(ips string) error {
	for _, s := range strings.Split(ips, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.IsUnspecified() || a.Zone() != "" {
			return fmt.Errorf("--node-ips %q: write addresses of this node with commas between them", ips)
		}
		o.node.Add(a)
	}
	return nil
}

// config says how the API server is reached. The API server limits requests, by priority and fairness.
// The client does not: with client-go's five requests a second, the grant of a pod would wait until the
// status of others is written.
func (o *options) config() (c *rest.Config, err error) {
	if o.kubeconfig == "" {
		c, err = rest.InClusterConfig()
	} else {
		c, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err == nil {
		c.QPS = -1
		c.Wrap(connect.Singly)
	}
	return c, err
}
