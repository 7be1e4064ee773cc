// Package connect has a client of the API server make one connection at a time.
//
// It owns no connection and no TLS configuration: the transport that it wraps does. It needs no
// privilege and no particular kernel.
package connect

import (
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// Singly wraps a transport of HTTP/2. While there is no connection, one request makes one, and the
// others wait for it. http.Transport alone has each make its own, and keeps one of them: the four
// watches of a node are four TLS handshakes, and a thousand nodes that start at once are four thousand.
// It is a transport.WrapperFunc of client-go.
func Singly(next http.RoundTripper) http.RoundTripper {
	return &singly{next: next, turn: make(chan struct{}, 1)}
}

type singly struct {
	next      http.RoundTripper
	connected atomic.Bool   // a request has had a connection, and none has failed since
	turn      chan struct{} // has an element while a request connects
}

func (s *singly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.connected.Load() {
		select {
		case s.turn <- struct{}{}:
		case <-r.Context().Done():
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, r.Context().Err()
		}
		end := sync.OnceFunc(func() { <-s.turn })
		defer end()
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			s.connected.Store(true)
			end() // the answer may take long
		}}))
	}
	resp, err := s.next.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		s.connected.Store(false)
	}
	return resp, err
}

// WrappedRoundTripper is how client-go finds the transport, to close connections.
func (s *singly) WrappedRoundTripper() http.RoundTripper { return s.next }
