package connect

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Requests that begin at once share a connection, and do not wait for the first one's answer. A
// connection that fails is an error of one request, and another one tries.
func TestSingly(t *testing.T) {
	const requests, failures = 16, 3
	var there, connections, dials, failed atomic.Int64
	all := make(chan struct{}) // closed when all requests are there
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if there.Add(1) == requests-failures {
			close(all)
		}
		<-all
	}))
	s.EnableHTTP2 = true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	refused := errors.New("refused by the test")
	c := &rest.Config{
		Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: time.Minute, // for hangs only
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) <= failures {
				return nil, refused
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	c.Wrap(Singly)
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range requests {
		running.Go(func() {
			switch r, err := client.Get(s.URL); {
			case errors.Is(err, refused):
				failed.Add(1)
			case err != nil:
				t.Error(err)
			default:
				r.Body.Close()
				if r.ProtoMajor != 2 {
					t.Errorf("the answer has %s, want HTTP/2", r.Proto)
				}
			}
		})
	}
	running.Wait()
	if failed.Load() != failures || dials.Load() != failures+1 || connections.Load() != 1 {
		t.Errorf("%d of %d requests failed in %d dials, and the server had %d connections; want %d, %d and 1",
			failed.Load(), requests, dials.Load(), connections.Load(), failures, failures+1)
	}
}
