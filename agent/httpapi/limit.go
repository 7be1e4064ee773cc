package httpapi

import (
	"net"
	"net/http"
)

// limited is a listener that accepts no more than so many connections at once;
// others wait until one is closed. Who says nothing for a while is closed by the
// server, so that nobody waits for ever.
type limited struct {
	net.Listener
	places chan struct{}
}

// Limit makes a listener a limited one, for a server that serves no other. The
// connections stay what they were.
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
