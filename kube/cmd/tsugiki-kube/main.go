// Command tsugiki-kube has Kubernetes' pods follow GraftEndpoints and GraftPolicies: "node" on each
// node, beside the agent, and "cluster" once for the cluster. docs/design/kubernetes.md says how. Its
// image has Tsugiki's programs, too: "install" puts them onto a node, and "agent" starts the agent there.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"

	ctrl "sigs.k8s.io/controller-runtime"
)

const usage = `tsugiki-kube has Kubernetes' pods follow GraftEndpoints and GraftPolicies.

  tsugiki-kube node --node NAME --node-ips ADDR[,ADDR] [--agent SOCKET] [--runtime-class NAME]...
  tsugiki-kube cluster [--namespace NAME]

Both take --kubeconfig FILE; without it, they are pods of the cluster. Both take --metrics ADDR:PORT
for Prometheus, --probes ADDR:PORT for /healthz and /readyz, and --log-level. node reads NODE_NAME
and NODE_IPS of the environment.

These are for containers of the DaemonSet, which has the programs of Tsugiki in its image:

  tsugiki-kube install [--root DIR] [--agent-config FILE] [--containerd-config FILE] [--containerd SOCKET]
                       [--translate] [--plugin-dir DIR]
      puts the programs and the configuration onto the node, whose folders are mounted in DIR (/host),
      and the runtime into containerd's configuration ("": none); with --translate also that of pods
      whose IPv4 is translated, with tsugiki-cni in containerd's folder of network plugins (/opt/cni/bin)
  tsugiki-kube agent [--root DIR] [--containerd SOCKET] [--containerd-unit NAME]
      starts the node's agent, and first restarts the unit of systemd if containerd has not read its
      configuration since that was changed: once for each change
  tsugiki-kube ready [--root DIR] [--containerd SOCKET]
      tells whether the agent answers, and containerd has read its configuration
  tsugiki-kube uninstall [--containerd SOCKET]
      removes all of that from the node, once no pod needs it
  tsugiki-kube wait
      waits until the pod ends
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Print(usage)
		return 0
	}
	if command, is := onNode[args[0]]; is {
		return runOnNode(args[0], command, args[1:])
	}
	commands := map[string]func(*options) error{"node": runNode, "cluster": runCluster}
	command, known := commands[args[0]]
	if !known {
		fmt.Fprintf(os.Stderr, "tsugiki-kube: unknown command %q; see tsugiki-kube --help\n", args[0])
		return 2
	}
	o, err := parse(args[0], args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "tsugiki-kube %s: %v\n", args[0], err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.level}))
	slog.SetDefault(log)
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	if err := command(o); err != nil {
		fmt.Fprintf(os.Stderr, "tsugiki-kube %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

func runOnNode(name string, command func(args []string) error, args []string) int {
	err := command(args)
	if err == nil {
		return 0
	}
	if status := statusError(0); errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "tsugiki-kube %s: %v\n", name, err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}
