package node

import (
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// A node that starts while the API server is away does not end. It follows the resources once the API
// server is back.
func TestStartsWithoutTheAPIServer(t *testing.T) {
	w := newWorld(t)
	p := w.pod("early", kubetest.NodeName, webLabels)
	w.Server.Kill()
	w.start(time.Millisecond)
	w.Server.Start()
	w.Await()
	w.granted(p, given)
}
