// Package node has the pods of one node follow the resources of the cluster: it decides what each
// is given (package grant), tells the agent, and writes what became of it into the pod's status and
// events. Of the ports in the pod's status, package cluster makes EndpointSlices.
//
// It owns no rules: the agent has them, and the resources. It makes no sockets but the agent's and
// the API server's. It needs the agent's socket, and so to be root with CAP_NET_ADMIN, and the
// permissions of deploy/manifests/rbac.yaml.
//
// # Theory of operation
//
// There is one key of work: a pod. Changes of pods, policies, endpoints and labels of namespaces,
// and events of the agent, all end in Reconcile for the pods that they concern. Reconcile decides
// anew by the caches, and does what is missing. So it may be called at any time, and any number of
// times.
//
// Reconcile writes nothing but the grant. The status of a pod has a queue of its own (write):
// a grant, which may take rules away, waits for no request to the API server.
//
// The agent's stream of events is the session (session.go). Nothing is put before the stream has
// begun, and everything is put again when it begins anew: the agent may be another one.
//
// A refusal is put only when a container of the pod has waited for grace, or if the pod has been
// given something: watches are not ordered among each other, so a pod may come before the policy
// that was created first. A refusal by the pod's specification alone waits for nothing.
//
// For the same reason, the rule of a pod that runs may name an endpoint that is not there yet. The pod has its other
// rules then, and is refused if the endpoint does not come within grace. An endpoint that was there and is deleted
// refuses the pod at once.
//
// A grant that the agent cannot carry out (api.ErrInvalid) becomes a refusal with the agent's reason:
// the pod has neither the rules before nor half of the new ones. Rules that the node cannot have at present, as another
// process has the port, are told, and the grant is put again after a pause.
package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/ports"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Grace is how long a container waits before its pod is refused.
const Grace = 2 * time.Second

// Agent is the node's agent. api.Client is one.
type Agent interface {
	PutGrant(uid string, g api.Grant) (api.Granted, error)
	DeleteGrant(uid string) error
	Pods() ([]api.PodState, error)
	PodEvents(ctx context.Context, each func(api.PodEvent)) error
	Containers() ([]api.Container, error)
}

// Options configure a node.
type Options struct {
	Node grant.Node
	// Classes are the names of the RuntimeClasses whose pods are grafted.
	Classes []string
	Agent   Agent
	// Free is asked before a pod gets a port of the node.
	Free ports.Free
	// Grace is that of the constant, if it is 0.
	Grace time.Duration
	// Again is the pause before the agent is asked again for what it could not do: what is in the way may be gone. 0 is
	// a minute.
	Again time.Duration
	// MissingAfter is that of the constant, if it is 0.
	MissingAfter time.Duration
	// Workers is the number of pods at once.
	Workers int
	Log     *slog.Logger
}

// Node has the pods of a node follow the resources of the cluster.
type Node struct {
	Options
	client client.Client // reads from the caches
	live   client.Reader // asks the API server
	events events.EventRecorder
	ports  *ports.Table
	wake   chan event.TypedGenericEvent[client.Object]
	writes chan event.TypedGenericEvent[client.Object] // pods that write is to look at

	mu      sync.Mutex // guards what follows
	session uint64     // of the agent's stream; 0: there was none yet
	// known has pods by their names, and of a name all UIDs that the agent may know.
	known   map[types.NamespacedName][]*known
	waiting map[string]time.Time // since when a container of a pod waits, by UID
	// peersNow is what peers returns; nil: nobody has asked since the last of the peerChanges.
	peersNow    *grant.Peers
	peerChanges uint64
}

// known is what the agent knows of a pod, and what the pod's status has.
type known struct {
	uid       string
	session   uint64               // in which the grant was put
	put       *api.Grant           // nil: none
	seen      bool                 // the pod was in the cache
	given     bool                 // the agent has, or had, a grant or containers of the pod
	endpoints map[string]time.Time // that its rules name, and since when there is none of the name; 0: there was one
	selects   bool                 // its rules select pods of the node
	short     bool                 // there was no port for one of its rules
	registers int                  // how often a container of the pod was registered
	restart   map[string][]string  // rules that containers do not have, by container
	because   map[string]string    // the reasons, by container
	failed    []api.GrantFailure   // what of the grant is not in force
	retry     time.Time            // when it is put again therefore
	decided   *grant.Decision      // of the grant; nil: none
	grafted   map[string]string    // ids of containers that the agent has had, by name; see annotated.go
	unruled   map[string]string    // ids of containers that have run without rules, by name
	looked    looked
}

// Add adds a node to a manager whose caches are those of CacheOptions.
func Add(m ctrl.Manager, o Options) (*Node, error) {
	o.Grace, o.Again, o.MissingAfter = cmp.Or(o.Grace, Grace), cmp.Or(o.Again, refusedAgain), cmp.Or(o.MissingAfter, MissingAfter)
	n := &Node{
		Options: o, client: m.GetClient(), live: m.GetAPIReader(), events: m.GetEventRecorder("tsugiki"), ports: ports.New(o.Free),
		wake:   make(chan event.TypedGenericEvent[client.Object], 1024),
		writes: make(chan event.TypedGenericEvent[client.Object], 1024),
		known:  map[types.NamespacedName][]*known{}, waiting: map[string]time.Time{},
	}
	if err := watchAll(m.GetCache()); err != nil {
		return nil, fmt.Errorf("watch for node %s: %w", o.Node.Name, err)
	}
	err := ctrl.NewControllerManagedBy(m).Named("pod").
		For(&corev1.Pod{}, builder.WithPredicates(n.ofConcern())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(n.podsWithPeers), builder.WithPredicates(peerChanged)).
		Watches(&v1alpha1.GraftPolicy{}, handler.EnqueueRequestsFromMapFunc(n.podsOfNamespace), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.GraftEndpoint{}, handler.EnqueueRequestsFromMapFunc(n.podsOfEndpoint), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(n.podsInNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Channel(n.wake, &handler.EnqueueRequestForObject{})).
		WithOptions(caches.Controller(max(1, o.Workers))).
		Complete(n)
	if err == nil {
		err = ctrl.NewControllerManagedBy(m).Named("pod-status").
			WatchesRawSource(source.Channel(n.writes, &handler.EnqueueRequestForObject{})).
			WithOptions(caches.Controller(max(1, o.Workers))).
			Complete(reconcile.Func(n.write))
	}
	if err == nil {
		err = m.Add(n)
	}
	if err != nil {
		return nil, fmt.Errorf("add node %s: %w", o.Node.Name, err)
	}
	return n, nil
}
