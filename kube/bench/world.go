package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

const (
	// class is the RuntimeClass of deploy/.
	class = "tsugiki"
	// atOnce is how many objects are made at once.
	atOnce = 32
)

//go:embed kwok.yaml
var kwokStages []byte

// world is a cluster: an API server, kwok's nodes and pods, and agents.
//
// Each node has as many pods of each namespace. All pods of a namespace have one policy, which has
// an ingress rule at the endpoint 0 and an egress rule at an endpoint of the namespace's own.
type world struct {
	o        *options
	t        testkit.TB
	place    *testkit.Namespace
	server   *kubetest.APIServer
	admin    client.Client
	kwok     *kubetest.Process
	agents   *agents
	agent    *kubetest.Process // a real one; nil: all are in memory
	tokens   []string          // of nodes
	fleet    fleet
	cluster  *process // tsugiki-kube cluster
	progress io.Writer
}

func nodeName(i int) string            { return fmt.Sprintf("n%04d", i) }
func namespaceName(i int) string       { return fmt.Sprintf("shop%d", i) }
func endpointName(i int) string        { return fmt.Sprintf("e%04d", i) }
func nodeAddress(i int) netip.Addr     { return netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}) }
func (w *world) podsPerNamespace() int { return w.o.pods / w.o.namespaces }

// build starts the API server and kwok, and makes all objects. The controllers of nodes do not run.
func (w *world) build(ctx context.Context) error {
	top := testkit.Build(w.t, testkit.Options{})
	w.place = top.Host
	dir, err := os.MkdirTemp("", "kube-bench-") // short: paths of sockets are
	if err != nil {
		return err
	}
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	w.server = kubetest.StartAPIServer(w.t, w.place, w.place)
	w.admin = w.server.Deploy()
	if !w.o.flows {
		if err := w.admin.DeleteAllOf(ctx, &flowcontrolv1.FlowSchema{}, client.MatchingLabels{"app": "tsugiki-kube"}); err != nil {
			return err
		}
	}
	if w.o.only == watches {
		return errors.Join(w.resources(ctx), w.startCluster(ctx), w.settle(ctx))
	}
	kwok := kubetest.Program(w.t, "kwok")
	stages := filepath.Join(dir, "kwok.yaml")
	if err := os.WriteFile(stages, kwokStages, 0o600); err != nil {
		return err
	}
	w.kwok = kubetest.Run(w.t, w.place, kwok, "--config", stages, "--kubeconfig", w.server.Kubeconfig("admin"),
		"--manage-all-nodes", "--node-lease-duration-seconds", "40")
	if err := w.serveAgents(dir); err != nil {
		return err
	}
	began := time.Now()
	err = errors.Join(w.resources(ctx), w.nodesAndPods(ctx))
	if err != nil {
		return err
	}
	if err := w.startCluster(ctx); err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	fmt.Fprintf(w.progress, "%d nodes, %d pods and %d endpoints are there after %.0f s\n", w.o.nodes, w.o.pods, w.o.endpoints, time.Since(began).Seconds())
	return nil
}

// serveAgents serves an agent for each node.
func (w *world) serveAgents(dir string) error {
	w.agents = &agents{dir: dir}
	w.t.Cleanup(func() {
		if err := w.agents.close(); err != nil {
			w.t.Errorf("%v", err)
		}
	})
	if w.o.agent != "" {
		return w.startAgent(dir)
	}
	for i := range w.o.nodes {
		if err := w.agents.add(nodeName(i), kubetest.NewAgent()); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts the agent of the one node.
func (w *world) startAgent(dir string) error {
	file, run := filepath.Join(dir, "agent.toml"), filepath.Join(dir, "run")
	if err := os.WriteFile(file, []byte("[kubernetes]\ngrants = true\n"), 0o600); err != nil {
		return err
	}
	w.agent = kubetest.Run(w.t, w.place, w.o.agent, "agent", "--config", file, "--run-dir", run, "--state-dir", filepath.Join(dir, "state"))
	c := api.Dial(api.SocketIn(run))
	testkit.Eventually(w.t, func() error {
		if w.agent.Ended() {
			w.t.Fatalf("the agent has ended: %s", strings.TrimSpace(w.agent.Log()))
		}
		_, err := c.Pods()
		return err
	})
	return w.agents.add(nodeName(0), c)
}

// each calls a function with all numbers below n, some at once.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for i := range n {
		all.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return do(ctx, i)
		})
	}
	return all.Wait()
}

// resources makes namespaces, endpoints and policies.
func (w *world) resources(ctx context.Context) error {
	label := map[string]string{"team": "shop"}
	err := each(ctx, w.o.endpoints, func(ctx context.Context, i int) error {
		e := &v1alpha1.GraftEndpoint{
			ObjectMeta: metav1.ObjectMeta{Name: endpointName(i)},
			Spec: v1alpha1.GraftEndpointSpec{
				Type: v1alpha1.IPv4, Address: v1alpha1.NodeAddress, Destinations: []v1alpha1.Destination{{CIDR: "10.0.0.0/8"}, {CIDR: "192.0.2.0/24", Ports: "443"}},
				AllowedPods: []v1alpha1.PodSelection{{NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: label}}},
			},
		}
		if i == 0 {
			e.Spec.Ports, e.Spec.Destinations = "31000-31999", nil
		}
		return w.admin.Create(ctx, e)
	})
	if err != nil {
		return err
	}
	return each(ctx, w.o.namespaces, func(ctx context.Context, i int) error {
		name := namespaceName(i)
		for _, o := range []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: label}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}},
			&v1alpha1.GraftPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: name},
				Spec: v1alpha1.GraftPolicySpec{
					PodSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Ingress:     []v1alpha1.IngressRule{{Endpoint: endpointName(0), Port: 80, Service: &v1alpha1.ServicePort{Name: "web", Port: "http"}}},
					Egress:      []v1alpha1.EgressRule{{Endpoint: endpointName(1 + i), To: []string{destination(0)}}},
				},
			},
		} {
			if err := w.admin.Create(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// destination is that of the egress rule in a round.
func destination(round int) string { return fmt.Sprintf("10.%d.0.0/16", round) }

// nodesAndPods makes nodes with the pod of tsugiki-kube and with grafted pods.
func (w *world) nodesAndPods(ctx context.Context) error {
	w.tokens = make([]string, w.o.nodes)
	err := each(ctx, w.o.nodes, func(ctx context.Context, i int) (err error) {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i).String()}}},
		}
		if err := w.admin.Create(ctx, node); err != nil {
			return err
		}
		w.tokens[i], err = kubetest.MakeToken(ctx, w.admin, "tsugiki-kube-node", nodeName(i))
		return err
	})
	if err != nil {
		return err
	}
	class := class
	return each(ctx, w.o.pods, func(ctx context.Context, i int) error {
		return w.admin.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("web-%d", i), Namespace: namespaceName(i / w.o.nodes % w.o.namespaces), Labels: map[string]string{"app": "web"},
			},
			Spec: corev1.PodSpec{
				NodeName: nodeName(i % w.o.nodes), RuntimeClassName: &class, AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "nginx", Image: "nginx", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
			},
		})
	})
}

// settle waits until kwok runs all pods, and all endpoints and policies have their status.
func (w *world) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(w.o.limit, settleLimit))
	defer cancel()
	return pollEach(ctx, settleInterval, func() error {
		if w.kwok != nil && w.kwok.Ended() {
			w.t.Fatalf("kwok has ended: %s", strings.TrimSpace(w.kwok.Log()))
		}
		var pending corev1.PodList
		err := w.admin.List(ctx, &pending, client.MatchingFields{"status.phase": string(corev1.PodPending)}, client.Limit(1))
		if err != nil {
			return err
		}
		if len(pending.Items) > 0 {
			return errors.New("some pods do not run")
		}
		var endpoints v1alpha1.GraftEndpointList
		if err := w.admin.List(ctx, &endpoints); err != nil {
			return err
		}
		for i := range endpoints.Items {
			if len(endpoints.Items[i].Status.Conditions) == 0 {
				return fmt.Errorf("%s has no status", endpoints.Items[i].Name)
			}
		}
		return nil
	})
}

func (w *world) startCluster(ctx context.Context) error {
	token, err := kubetest.MakeToken(ctx, w.admin, "tsugiki-kube-cluster", "")
	if err != nil {
		return err
	}
	c := w.server.Config("")
	w.cluster, err = start(w.place, &order{Server: c.Host, CA: c.CAFile, Cluster: token})
	if err != nil {
		return err
	}
	w.t.Cleanup(w.cluster.stop)
	return nil
}

// startNodes starts the controllers of all nodes. The last node has a process of its own.
func (w *world) startNodes() error {
	c := w.server.Config("")
	for first := 0; first < w.o.nodes; {
		next := min(first+w.o.perProcess, max(w.o.nodes-1, first+1))
		o := &order{Server: c.Host, CA: c.CAFile}
		for i := first; i < next; i++ {
			o.Nodes = append(o.Nodes, nodeOrder{Name: nodeName(i), Token: w.tokens[i], IPv4: nodeAddress(i), Socket: w.agents.socket(nodeName(i))})
		}
		p, err := start(w.place, o)
		if err != nil {
			return err
		}
		w.fleet.processes = append(w.fleet.processes, p)
		first = next
	}
	return nil
}

// patch changes an object.
func (w *world) patch(ctx context.Context, o client.Object, text string) error {
	return w.admin.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text)))
}

const (
	// pollInterval is the pause between two looks.
	pollInterval = 250 * time.Millisecond
	// settleInterval is that pause where a look costs the API server much: it reads all pods from etcd.
	settleInterval = 2 * time.Second
	// settleLimit is for hangs only.
	settleLimit = 15 * time.Minute
)

// poll looks until a check returns nil, or ctx ends.
func poll(ctx context.Context, check func() error) error { return pollEach(ctx, pollInterval, check) }

func pollEach(ctx context.Context, pause time.Duration, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
