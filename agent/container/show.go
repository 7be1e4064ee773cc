package container

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Shown is the description of a container for others.
type Shown struct {
	PID    int      // of the first program; 0 before there is one
	Ports  []string // that it may serve: HOST:PORT->ADDR:PORT
	Egress []string // prefixes to which it may connect: PREFIX->ENDPOINT ADDRESS
}

// Show describes a container. During a change, it describes the container before the change.
func (c *Container) Show() Shown {
	if c.changes.TryLock() {
		defer c.changes.Unlock()
		c.refresh()
	}
	return *c.shown.Load()
}

// refresh updates the description. The caller holds c.changes, or nobody else can have c yet.
func (c *Container) refresh() {
	s := c.describe()
	c.shown.Store(&s)
}

func (c *Container) describe() Shown {
	s := Shown{PID: c.state.PID, Ports: []string{}, Egress: []string{}}
	for _, r := range c.table.IngressRules() {
		bound, _, _ := strings.Cut(r.WithFrom(nil).String(), "=")
		if len(r.From) > 0 {
			bound += "+from" // there may be hundreds
		}
		s.Ports = append(s.Ports, served(r)+"->"+bound)
	}
	for _, r := range c.given.Load().egress {
		if ep := c.endpointNamed(r.Endpoint.Name); ep != nil {
			target, _, _ := strings.Cut(r.String(), "=")
			s.Egress = append(s.Egress, target+"->"+source(ep))
		}
	}
	for _, r := range c.given.Load().names {
		if ep := c.endpointNamed(r.Endpoint.Name); ep != nil {
			s.Egress = append(s.Egress, r.String()+"->"+source(ep))
		}
	}
	return s
}

// served returns the address and port on the host to which a rule leads a bind.
func served(r policy.Ingress) string {
	ep := r.Endpoint
	if ep.Type == endpoint.Unix {
		return ep.Path
	}
	first := r.HostPort(r.Ports.First)
	at := netip.AddrPortFrom(ep.Addr, first).String()
	if size := r.Ports.Size(); size > 1 {
		at += fmt.Sprintf("-%d", int(first)+size-1)
	}
	return at
}

// source returns the host's address from which an endpoint connects.
func source(ep *endpoint.Endpoint) string {
	switch {
	case ep.Type == endpoint.Unix:
		return ep.Path
	case ep.Dynamic():
		return ep.Addr.String()
	}
	return netip.AddrPortFrom(ep.Addr, ep.Port.First).String()
}
