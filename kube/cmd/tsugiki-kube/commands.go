package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/cluster"
	"github.com/tsugiki/tsugiki/kube/node"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// manager makes a manager of controllers.
func (o *options) manager(m ctrl.Options) (ctrl.Manager, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	m.Scheme = runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(m.Scheme), v1alpha1.AddToScheme(m.Scheme)); err != nil {
		return nil, err
	}
	m.MapperProvider = caches.Mapper
	m.Metrics = server.Options{BindAddress: o.metrics}
	m.HealthProbeBindAddress = o.probes
	mgr, err := ctrl.NewManager(cfg, m)
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", complete(mgr.GetCache())))
}

// lookLimit is how long a probe waits for caches.
const lookLimit = 500 * time.Millisecond

// complete is a check of readiness: what is watched is there. A process that waits to be the leader watches nothing.
func complete(c cache.Cache) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), lookLimit)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the API server has not said yet what there is")
		}
		return nil
	}
}

func runNode(o *options) error {
	m, err := o.manager(ctrl.Options{Cache: node.CacheOptions(o.node.Name)})
	if err != nil {
		return err
	}
	_, err = node.Add(m, node.Options{
		Node: o.node, Classes: o.classes, Agent: api.Dial(o.agent), Free: free, Workers: 4, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	return m.Start(ctrl.SetupSignalHandler())
}

func runCluster(o *options) error {
	m, err := o.manager(ctrl.Options{
		Cache:          cluster.CacheOptions(),
		LeaderElection: true, LeaderElectionID: "tsugiki-kube", LeaderElectionNamespace: o.namespace, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	fields, err := cluster.NewFields(m, slog.Default())
	if err == nil {
		err = errors.Join(m.AddReadyzCheck("fields", fields.Check), cluster.Add(m))
	}
	if err != nil {
		return err
	}
	return m.Start(ctrl.SetupSignalHandler())
}

// free tells whether a port of this process's network namespace, which is the node's, can be bound.
// It is a look at one moment.
func free(protocol v1alpha1.Protocol, at netip.AddrPort) bool {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	kind := unix.SOCK_STREAM
	if protocol == v1alpha1.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // the agent will say what is wrong
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_STREAM { // connections of an earlier server do not count
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	return !errors.Is(unix.Bind(fd, address), unix.EADDRINUSE)
}
