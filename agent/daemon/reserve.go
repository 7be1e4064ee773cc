package daemon

import (
	"github.com/tsugiki/tsugiki/agent/ports"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/netns"
)

// findPorts finds the ports of adopted containers. The kernel says of each socket in which cgroup
// it was made.
func (d *Daemon) findPorts(adopted []*managed) {
	owners := map[uint64]*ports.Holder{}
	namespaces := map[uint64]*netns.NS{}
	for _, m := range adopted {
		owners[m.SocketsID()] = m.Ports()
		for _, ns := range m.HostNamespaces() {
			namespaces[ns.Cookie()] = ns
		}
	}
	for cookie, ns := range namespaces {
		sockets, err := ns.Sockets()
		if err != nil {
			d.log.Warn("which ports containers have is not known; containers of one user may share them", "err", err)
			for _, o := range owners {
				o.SetUnknown()
			}
			return
		}
		for _, s := range sockets {
			if o := owners[s.Cgroup]; o != nil {
				dual := s.At.Addr().Is6() && s.At.Addr().IsUnspecified() && !s.V6Only
				o.Found(graft.Port{Netns: cookie, Protocol: s.Protocol, At: s.At, Dual: dual})
			}
		}
	}
}
