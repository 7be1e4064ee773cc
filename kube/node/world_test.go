package node

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/caches"
	"github.com/tsugiki/tsugiki/kube/cluster"
	"github.com/tsugiki/tsugiki/kube/grant"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

const resources = kubetest.Shop + `
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftEndpoint
metadata: {name: out}
spec: {type: IPv4, address: Any, destinations: [{cidr: 10.0.0.0/8}], allowedPods: [{namespaceSelector: {matchLabels: {team: shop}}}]}
---
apiVersion: tsugiki.dev/v1alpha1
kind: GraftPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{endpoint: web, port: 80, service: {name: web, port: http}}]
  egress: [{endpoint: out, to: [10.1.0.0/16]}]
`

// log is that of the controllers. TSUGIKI_DEBUG shows what they do.
var log = func() *slog.Logger {
	level := slog.LevelError + 1
	if os.Getenv("TSUGIKI_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}()

// world is an API server with the manifests of deploy/, the resources above, the controllers of the
// cluster, and a node.
type world struct {
	*kubetest.APIServer
	t      *testing.T // the subtest
	whole  *testing.T // what ends the node
	admin  client.Client
	agent  *kubetest.Agent
	config *rest.Config  // of the node
	again  time.Duration // see Options.Again
	stop   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{APIServer: kubetest.Serve(t), t: t, whole: t, agent: kubetest.NewAgent()}
	w.admin = w.Deploy()
	kubetest.Create(t, w.admin, resources)
	m := w.manager(w.Config(kubetest.Token(t, w.admin, "tsugiki-kube-cluster", "")), cluster.CacheOptions())
	if err := cluster.Add(m); err != nil {
		t.Fatal(err)
	}
	kubetest.StartManager(t, m)
	w.config = w.Config(kubetest.Token(t, w.admin, "tsugiki-kube-node", kubetest.NodeName))
	return w
}

// manager makes a manager with the permissions of a configuration.
func (w *world) manager(c *rest.Config, of cache.Options) ctrl.Manager {
	w.t.Helper()
	skip := true
	m, err := ctrl.NewManager(c, ctrl.Options{
		Scheme: w.admin.Scheme(), Cache: of, MapperProvider: caches.Mapper, Metrics: server.Options{BindAddress: "0"}, Logger: logr.FromSlogHandler(log.Handler()),
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// start starts a node, with the permissions of deploy/.
func (w *world) start(grace time.Duration) {
	w.t.Helper()
	m := w.manager(w.config, CacheOptions(kubetest.NodeName))
	_, err := Add(m, Options{
		Node: grant.Node{Name: kubetest.NodeName, IPv4: testkit.HostAddr4, IPv6: testkit.HostAddr6}, Classes: []string{"tsugiki", "tsugiki-translate"},
		Agent: w.agent, Grace: grace, Again: w.again, MissingAfter: time.Millisecond, Workers: 2, Log: log,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.stop = kubetest.StartManager(w.whole, m)
}

// pod makes a pod on a node, as the scheduler and the kubelet do.
func (w *world) pod(name, node string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	p := podNamed(name, node, labels)
	if err := w.create(p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// create makes a pod, and writes the addresses of its node into its status.
func (w *world) create(p *corev1.Pod) error {
	if err := w.admin.Create(w.t.Context(), p); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"status": {"hostIP": %[1]q, "hostIPs": [{"ip": %[1]q}, {"ip": %[2]q}]}}`, testkit.HostAddr4, testkit.HostAddr6)
	return w.admin.Status().Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}

func podNamed(name, node string, labels map[string]string) *corev1.Pod {
	class := "tsugiki"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, RuntimeClassName: &class, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "nginx", Image: "nginx", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
		},
	}
}

func (w *world) delete(o client.Object) {
	w.t.Helper()
	if err := w.admin.Delete(w.t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

// granted waits until a pod has a grant of which is tells that it is the right one.
func (w *world) granted(p *corev1.Pod, is func(api.Grant) error) api.Grant {
	w.t.Helper()
	var g api.Grant
	testkit.Eventually(w.t, func() error {
		var found bool
		if g, found = w.agent.Grant(string(p.UID)); !found {
			return fmt.Errorf("pod %s has no grant", p.Name)
		}
		return is(g)
	})
	return g
}

func given(g api.Grant) error {
	if r := g.Containers["nginx"]; g.Refused != "" || len(r.Ingress) != 1 || len(r.Egress) != 1 {
		return fmt.Errorf("grant %+v, want one rule of each kind", g)
	}
	return nil
}

func refused(why string) func(api.Grant) error {
	return func(g api.Grant) error {
		if !strings.Contains(g.Refused, why) || len(g.Containers) > 0 {
			return fmt.Errorf("grant %+v, want the refusal %q", g, why)
		}
		return nil
	}
}

// register is a container of a pod that starts, with the grant that the pod has.
func (w *world) register(p *corev1.Pod) {
	w.t.Helper()
	if _, found := w.agent.Register(api.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Container: "nginx"}); !found {
		w.t.Fatalf("pod %s has no grant", p.Name)
	}
}

// event waits for an event on a pod.
func (w *world) event(p *corev1.Pod, reason, note string) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		var list eventsv1.EventList
		if err := w.admin.List(w.t.Context(), &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == p.UID && e.Reason == reason && strings.Contains(e.Note, note) {
				return nil
			}
		}
		return fmt.Errorf("no event %s %q on pod %s among %d", reason, note, p.Name, len(list.Items))
	})
}

// condition waits for the condition of a pod, and returns the pod.
func (w *world) condition(p *corev1.Pod, status corev1.ConditionStatus, reason, message string) *corev1.Pod {
	w.t.Helper()
	var now corev1.Pod
	testkit.Eventually(w.t, func() error {
		if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(p), &now); err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == ConditionGrafted && c.Status == status && c.Reason == reason && strings.Contains(c.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("conditions of pod %s: %+v, want %s, %s %q", p.Name, now.Status.Conditions, status, reason, message)
	})
	return &now
}

// slices returns the slices of a Service.
func (w *world) slices(service string) []discoveryv1.EndpointSlice {
	w.t.Helper()
	var list discoveryv1.EndpointSliceList
	if err := w.admin.List(w.t.Context(), &list, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// ready has a pod be ready or not, as the kubelet says it.
func (w *world) ready(p *corev1.Pod, status corev1.ConditionStatus) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.admin.Status().Patch(w.t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		w.t.Fatal(err)
	}
}

// available waits until a Service has so many endpoints, and so many of them are ready.
func (w *world) available(service string, endpoints, ready int) (hosts []netip.AddrPort) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		hosts = nil
		now := 0
		for _, s := range w.slices(service) {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					now++
				}
				hosts = append(hosts, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*s.Ports[0].Port)))
			}
		}
		if len(hosts) != endpoints || now != ready {
			return fmt.Errorf("Service %s has %d endpoints, %d ready; want %d, %d", service, len(hosts), now, endpoints, ready)
		}
		return nil
	})
	return hosts
}

// gone waits until a pod has no grant.
func (w *world) gone(p *corev1.Pod) {
	w.t.Helper()
	testkit.Eventually(w.t, func() error {
		if g, found := w.agent.Grant(string(p.UID)); found {
			return fmt.Errorf("pod %s still has the grant %+v", p.Name, g)
		}
		return nil
	})
}

var webLabels = map[string]string{"app": "web"}
