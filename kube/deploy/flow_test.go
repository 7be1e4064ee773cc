package deploy

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/kube/kubetest"
)

const (
	// others is the FlowSchema of all service accounts.
	others = "service-accounts"
	// reads is how many watches, or lists, begin at once.
	reads = 16
	// writes fill the queues of one user: six of the level workload-low, of 50 requests each, and all seats.
	writes = 400
)

// TestFlows has the statuses that nodes write fill all seats and queues of their user. Then a watch and a
// list of a node are neither turned away nor answered after the statuses. Without the FlowSchemas, they are.
func TestFlows(t *testing.T) {
	s := kubetest.Serve(t, "--max-requests-inflight=5", "--max-mutating-requests-inflight=5", "--request-timeout=1h")
	admin := s.Deploy()
	n := newNode(t, s, kubetest.Token(t, admin, "tsugiki-kube-node", kubetest.NodeName))
	flows := map[string]string{"tsugiki-kube-watch": "?watch=true", "tsugiki-kube-list": ""}
	for name := range flows {
		if err := admin.Delete(t.Context(), &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, query := range flows {
		n.inForce(admin, others, query)
	}
	n.fill()
	for _, query := range flows {
		n.turnedAway(n.read(query))
	}
	n.end()

	kubetest.CreateFiles(t, admin, nil, "manifests/flow.yaml")
	for name, query := range flows {
		n.inForce(admin, name, query)
	}
	n.fill()
	for name, query := range flows {
		before := n.count("dispatched_requests_total", name)
		begun := func() float64 { return n.count("dispatched_requests_total", name) - before }
		answers := n.read(query)
		testkit.Eventually(t, func() error {
			if has := begun() + n.count("current_inqueue_requests", name); has != reads {
				return fmt.Errorf("%s: the API server has %v requests, want %d", name, has, reads)
			}
			return nil
		})
		for begun() < reads {
			n.endOne()
		}
		if n.count("current_inqueue_requests", others) == 0 {
			t.Errorf("%s: no status waits any more", name)
		}
		for range reads {
			if got := <-answers; got != http.StatusOK {
				t.Errorf("%s: status %d", name, got)
			}
		}
	}
	n.end()
}

// node is a client with the token of a node.
type node struct {
	t testing.TB
	*kubetest.APIServer
	token   string
	client  *http.Client
	writing chan *write // of which the API server wants the body: they have a seat
	running []*write
}

// write is a request whose body ends when the test says so. As it waits for an answer before it sends
// the body, the API server wants the body once it has begun with the request.
type write struct {
	of     *node
	end    chan struct{}
	answer chan int
}

func newNode(t testing.TB, s *kubetest.APIServer, token string) *node {
	t.Helper()
	c := s.Config(token)
	tls, err := rest.TLSConfigFor(c)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: tls, DialContext: c.Dial, ForceAttemptHTTP2: true, ExpectContinueTimeout: time.Hour}
	n := &node{t: t, APIServer: s, token: token, client: &http.Client{Transport: transport}, writing: make(chan *write, 2*writes)}
	t.Cleanup(func() {
		n.end()
		transport.CloseIdleConnections()
	})
	return n
}

// do returns the status of an answer, and the UID of the FlowSchema; 0, if there is no answer.
func (n *node) do(method, path string, body io.Reader) (status int, flow string) {
	r, err := http.NewRequestWithContext(n.t.Context(), method, n.Config("").Host+path, body)
	if err != nil {
		return 0, ""
	}
	r.Header.Set("Authorization", "Bearer "+n.token)
	if body != nil {
		r.Header.Set("Expect", "100-continue")
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := n.client.Do(r)
	if err != nil {
		return 0, ""
	}
	resp.Body.Close() // ends a watch
	return resp.StatusCode, resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
}

const policies = "/apis/tsugiki.dev/v1alpha1/graftpolicies"

// inForce waits until the API server has requests of the node in a flow.
func (n *node) inForce(admin client.Client, name, query string) {
	n.t.Helper()
	var schema flowcontrolv1.FlowSchema
	testkit.Eventually(n.t, func() error {
		if err := admin.Get(n.t.Context(), client.ObjectKey{Name: name}, &schema); err != nil {
			return err
		}
		if status, flow := n.do(http.MethodGet, policies+query, nil); status != http.StatusOK || flow != string(schema.UID) {
			return fmt.Errorf("status %d of flow %q, want that of %s, %q", status, flow, name, schema.UID)
		}
		return nil
	})
}

// read has the node ask several times at once, and returns where the statuses of the answers come.
func (n *node) read(query string) chan int {
	answers := make(chan int, reads)
	for range reads {
		go func() {
			status, _ := n.do(http.MethodGet, policies+query, nil)
			answers <- status
		}()
	}
	return answers
}

// turnedAway waits until one of some requests is turned away. The API server may have got seats for
// others meanwhile.
func (n *node) turnedAway(answers <-chan int) {
	n.t.Helper()
	limit := time.After(testkit.Patience)
	for {
		select {
		case got := <-answers:
			if got == http.StatusTooManyRequests {
				return
			}
		case <-limit:
			n.t.Fatal("no request was turned away")
		}
	}
}

// fill has the node write until it is turned away: all queues are full.
func (n *node) fill() {
	n.t.Helper()
	answers := make(chan int, writes)
	for range writes {
		w := &write{of: n, end: make(chan struct{}), answer: make(chan int, 1)}
		n.running = append(n.running, w)
		go func() {
			status, _ := n.do(http.MethodPut, "/api/v1/namespaces/shop/pods/p/status", w)
			w.answer <- status
			answers <- status
		}()
	}
	n.turnedAway(answers)
}

// Read is called when the API server wants the body of a status.
func (w *write) Read([]byte) (int, error) {
	w.of.writing <- w
	<-w.end
	return 0, io.EOF
}

// endOne ends a status that has a seat, and waits for its answer.
func (n *node) endOne() {
	n.t.Helper()
	select {
	case w := <-n.writing:
		close(w.end)
		<-w.answer
		w.answer <- 0
	case <-time.After(testkit.Patience):
		n.t.Fatal("no status has a seat")
	}
}

// end ends all statuses.
func (n *node) end() {
	for _, w := range n.running {
		select {
		case <-w.end:
		default:
			close(w.end)
		}
	}
	for _, w := range n.running {
		<-w.answer
	}
	n.running = nil
	for len(n.writing) > 0 {
		<-n.writing
	}
}

// count is a metric of the API server's priority and fairness, of one FlowSchema.
func (n *node) count(metric, flow string) (sum float64) {
	n.t.Helper()
	m, err := n.Metrics()
	if err != nil {
		n.t.Fatal(err)
	}
	m.Each("apiserver_flowcontrol_"+metric, func(labels map[string]string, value, _ float64) {
		if labels["flow_schema"] == flow {
			sum += value
		}
	})
	return sum
}
