// Command tsugiki-kube has Kubernetes' pods follow GraftEndpoints and GraftPolicies: "node" on each
// node, beside the agent, and "cluster" once for the cluster. docs/design/kubernetes.md says how.
package main

import (
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
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Print(usage)
		return 0
	}
	commands := map[string]func(*options) error{"node": runNode, "cluster": runCluster}
	command, known := commands[args[0]]
	if !known {
		fmt.Fprintf(os.Stderr, "tsugiki-kube: unknown command %q; there are cluster and node\n", args[0])
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
