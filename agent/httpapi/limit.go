package httpapi

import (
	"net"
	"net/http"
)

// limited is a listener that accepts a limited number of connections at once. Others wait until one
// is closed. The server closes connections that are silent for a while, so that nobody waits for
// ever.
type limited struct {
	net.Listener
	places chan struct{}
}

// Limit wraps a listener in a limited one, for a server that serves no other. It does not wrap the
// connections.
func Limit(l net.Listener, s *http.Server, most int) net.Listener {
	places := make(chan struct{}, most)
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			<-places
		}
	}
	return &limited{l, places}
}

func (l *limited) Accept() (net.Conn, error) {
	l.places <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
	}
	return conn, err
}
