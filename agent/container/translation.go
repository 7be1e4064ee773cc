package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/translate"
	"github.com/tsugiki/tsugiki/translate/dns"
)

// translation is what translates IPv4 for a container: its table, and its DNS proxy. It implements
// graft.Translator.
type translation struct {
	*translate.Table
	pool  netip.Prefix // the whole pool
	peers netip.Prefix // the part of it that the kernel programs give out
	host  hostAddresses
	proxy *dns.Proxy
	named *namedHosts                     // nil: there are no name rules
	nat64 atomic.Pointer[translate.NAT64] // nil: none is known of the network
	known chan struct{}                   // closed after the first search for nat64
	udp   atomic.Pointer[datagrams]       // nil: UDP is not translated

	relayed   relayCounts
	decisions *slog.Logger

	socket net.PacketConn // of the proxy; nil before there is one

	end  context.CancelFunc // nil before the proxy serves
	work sync.WaitGroup
}

// checkTranslation returns an error if calls have to be trapped, because translation needs that
// they are not.
func (c *Container) checkTranslation() error {
	if c.spec.Translation == nil || c.state.Untrapped {
		return nil
	}
	err := c.needsTraps(c.table, c.endpoints.Load(), nil)
	return fmt.Errorf("IPv4 is translated only in a container whose loopback is on the host: %w", err)
}

// openTranslation makes the table of addresses.
func (c *Container) openTranslation() (graft.Translation, error) {
	if c.spec.Translation == nil {
		return graft.Translation{}, nil
	}
	t := &translation{pool: c.spec.Translation.Pool, host: hostAddresses{read: c.host[""].ns.Addresses}, known: make(chan struct{}), decisions: c.spec.Decisions}
	var prefix netip.Prefix
	prefix, t.peers = halves(t.pool)
	var err error
	options := translate.Options{Prefix: prefix, Pool: t.pool, Refuse: t.host.has, Connected: c.connected, Mapped: t.mapped, File: c.tableFile()}
	if t.Table, err = translate.New(options); err != nil {
		return graft.Translation{}, err
	}
	c.translation = t
	g := graft.Translation{
		Translator: t, Own: translate.Own, Nobody: translate.Nobody,
		Gateway: &gateway{
			ftp: c.spec.Translation.FTP, sip: c.spec.Translation.SIP, addrs: t, media: c.enforced.PublicPort,
			counts: &t.relayed, log: c.spec.Decisions,
		},
	}
	if len(c.spec.NameRules) > 0 {
		t.named = newNamedHosts(c.spec.NameRules, c.enforced, c.log, c.spec.Decisions)
		g.Opened = func(to netip.AddrPort) *endpoint.Endpoint { return c.enforced.OpenedBy(policy.TCP, to) }
	}
	return g, nil
}

// connected returns the IPv6 addresses, and the virtual ones, to which the container's sockets are
// connected.
func (c *Container) connected() (map[netip.Addr]int, error) {
	peers, err := c.host[""].ns.Peers(c.enforced.Cgroup())
	if err != nil {
		return nil, err
	}
	for to, n := range peers {
		if v4, is := virtualOf(c.spec.Translation.Pool, to); is {
			peers[v4] += n
		}
	}
	return peers, nil
}

// virtualOf returns the virtual address of a pool of which an alias is, to which UDP sockets are
// connected (bpf/virtual.h).
func virtualOf(pool netip.Prefix, alias netip.Addr) (v4 netip.Addr, is bool) {
	if !alias.Is4() {
		return v4, false
	}
	b := alias.As4()
	if is = b[0] == 127; is {
		b[0] = pool.Addr().As4()[0]
		v4 = netip.AddrFrom4(b)
	}
	return v4, is && pool.Contains(v4)
}

// serveNames starts the DNS proxy on the container's loopback, and gives the container an IPv4
// address: without one, programs do not ask for IPv4 addresses (AI_ADDRCONFIG of getaddrinfo(3)).
//
// The programs at the host's links are there before the proxy has its port. In a container that was
// adopted, datagrams for virtual addresses leave from then on.
func (c *Container) serveNames() error {
	t := c.translation
	if t == nil {
		return nil
	}
	var err error
	t.proxy, err = dns.New(dns.Options{
		Table: t.Table, Upstreams: c.given.Load().resolvers, NAT64: t.prefix, NAT64Known: t.known, Dial: c.dialResolver,
		Answered: t.named.answered(),
	})
	if err != nil {
		return err
	}
	if t.socket, err = openSocket(c.engine.NameSocket()); err != nil {
		return fmt.Errorf("make the socket of the DNS proxy: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	t.end = end
	if err := c.translateDatagrams(ctx, t.socket); err != nil {
		return err
	}
	if err := c.serveMessages(ctx); err != nil {
		return err
	}
	if err := c.listenForNames(ctx); err != nil {
		return fmt.Errorf("serve names on the container's loopback: %w", err)
	}
	t.work.Go(func() { t.discover(ctx) })
	if err := t.udp.Load().begin(); err != nil {
		return err
	}
	if err := c.ownNS.AddToLoopback(translate.Own); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := c.enforced.RelayPorts(slices.Concat(c.spec.Translation.FTP, c.spec.Translation.SIP)); err != nil {
		return err
	}
	return c.enforced.ServeNames()
}

// askResolvers has the DNS proxy ask the container's present resolvers, and refuse questions if there are none. The
// agent asks them from the host's network, which no rule limits.
func (c *Container) askResolvers() {
	if t := c.translation; t != nil && t.proxy != nil {
		t.proxy.SetUpstreams(c.given.Load().resolvers)
	}
}

// listenForNames gives the DNS proxy its port, and starts it.
func (c *Container) listenForNames(ctx context.Context) error {
	t := c.translation
	file, err := fileOf(t.socket)
	if err != nil {
		return err
	}
	listener, err := openListener(c.engine.ServeNames(file))
	if err != nil {
		return err
	}
	t.work.Go(func() {
		if err := t.proxy.Serve(ctx, []net.PacketConn{t.socket}, []net.Listener{listener}); err != nil {
			c.log.Error("the container gets no more answers for names", "err", err)
		}
	})
	return nil
}

// openSocket turns a UDP socket into a net.PacketConn, and owns the socket.
func openSocket(udp int, err error) (net.PacketConn, error) {
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(udp), "names by UDP")
	defer file.Close()
	return net.FilePacketConn(file)
}

// openListener turns a TCP socket into a net.Listener, and owns the socket.
func openListener(tcp int, err error) (net.Listener, error) {
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(tcp), "names by TCP")
	defer file.Close()
	return net.FileListener(file)
}

// dialResolver opens a socket to a resolver in the host's namespace.
func (c *Container) dialResolver(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = c.host[""].ns.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// The pauses of discover, unless the answer has another (RFC 7050 section 3).
const (
	discoverAgain = 10 * time.Second // after a failure
	discoverLeast = time.Minute
)

// discover keeps the network's NAT64 up to date. Nothing that it calls waits for it: the proxy
// needs no NAT64 to ask upstreams. While there are none, nothing is asked, and the NAT64 stays as it was. Others are
// asked at once.
func (t *translation) discover(ctx context.Context) {
	known := sync.OnceFunc(func() { close(t.known) })
	for {
		upstreams, changed := t.proxy.Upstreams()
		var again <-chan time.Time // never
		if len(upstreams) > 0 {
			again = time.After(t.search(ctx))
		}
		known()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// search looks for the network's NAT64, and returns the pause before the next search.
func (t *translation) search(ctx context.Context) time.Duration {
	found, valid, err := t.proxy.Discover(ctx)
	pause := max(valid, discoverLeast)
	switch {
	case err != nil:
		pause = discoverAgain
	case len(found) > 0:
		t.nat64.Store(&found[0])
	default:
		t.nat64.Store(nil)
	}
	t.udp.Load().leadNAT64()
	return pause
}

func (t *translation) prefix() (none translate.NAT64) {
	if n := t.nat64.Load(); n != nil {
		return *n
	}
	return none
}

// await waits for the first search for the NAT64, at most as long as a program waits for a name.
func (t *translation) await() {
	timeout := time.NewTimer(dns.DefaultTimeout)
	defer timeout.Stop()
	select {
	case <-t.known:
	case <-timeout.C:
	}
}

// V6 returns the IPv6 address for a virtual address, or for the address of an IPv4 host that the
// NAT64 reaches.
func (t *translation) V6(v4 netip.Addr) (netip.Addr, bool) {
	if !t.pool.Contains(v4) {
		t.await() // a program may connect as soon as it runs
	}
	return t.known6(v4)
}

// known6 is V6 without waiting for the first search for the NAT64.
func (t *translation) known6(v4 netip.Addr) (netip.Addr, bool) {
	if t.peers.Contains(v4) {
		v6, known := t.udp.Load().host(v4)
		return v6, known && t.Usable(v6)
	}
	if v6, known := t.Table.V6(v4); known || t.Prefix().Contains(v4) {
		return v6, known
	}
	v6, ok := t.prefix().Embed(v4)
	return v6, ok && t.Usable(v6)
}

// Map returns the virtual address of an IPv6 host, or the IPv4 address of a host behind the NAT64.
// If a name was answered with a virtual address of a host behind the NAT64, the program knows that
// address, and Map returns it. An IPv4 address that is also a virtual one here means another host.
func (t *translation) Map(v6 netip.Addr, ttl time.Duration) (netip.Addr, error) {
	if _, known := t.V4(v6); known {
		return t.Table.Map(v6, ttl)
	}
	if v4, ok := t.prefix().Extract(v6); ok && !t.Virtual(v4) && t.Usable(v6) {
		return v4, nil
	}
	if v4, known := t.udp.Load().virtual(v6); known && t.Usable(v6) {
		return v4, nil
	}
	return t.Table.Map(v6, ttl)
}

// close ends the proxy.
func (t *translation) close() error {
	if t == nil {
		return nil
	}
	if t.end != nil {
		t.end()
		t.work.Wait()
	}
	t.named.close()
	if t.socket != nil {
		_ = t.socket.Close() // the proxy has closed it, if it has served
	}
	return errors.Join(t.udp.Load().close(), t.Close())
}

// hostAddresses has the host's own addresses. They are a second old at most, or as old as the last
// successful read.
type hostAddresses struct {
	read func() ([]netip.Addr, error)

	mu   sync.Mutex // guards what follows
	list []netip.Addr
	at   time.Time // zero: never
}

const hostAddressesAge = time.Second

// has tells whether an address is the host's.
func (h *hostAddresses) has(addr netip.Addr) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > hostAddressesAge {
		list, err := h.read()
		switch {
		case err == nil:
			h.list, h.at = list, time.Now()
		case h.at.IsZero():
			return false, err
		}
	}
	return slices.Contains(h.list, addr), nil
}
