package modes

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// # Ends
//
// A client in a mode connects to a server on the remote, or a client on the remote to a server in the
// mode. The addresses that each of them uses are the mode's business.

// host is the namespace where programs in a mode are started.
func (r *Runner) host(m Mode) *testkit.Namespace {
	switch m {
	case NAT:
		return r.Top.Containers[0]
	case IPv4:
		return r.ipv4.Host
	case Tayga:
		return r.tayga.Host
	}
	return r.Top.Host
}

// remote is the namespace of their peers.
func (r *Runner) remote(m Mode) *testkit.Namespace {
	if m == IPv4 {
		return r.ipv4.Remote
	}
	return r.Top.Remote
}

// Remote prepares a program on the remote, on the servers' CPU.
func (r *Runner) Remote(ctx context.Context, m Mode, argv ...string) *testkit.Cmd {
	if r.pinned != nil {
		argv = pinned(r.pinned.Server, argv)
	}
	return r.remote(m).Command(ctx, argv[0], argv[1:]...)
}

// ServerAddr is where servers on the remote listen.
func (r *Runner) ServerAddr(m Mode) netip.Addr {
	if m.isOnIPv6() && m != IPv4 {
		return testkit.RemoteAddr6
	}
	return testkit.RemoteAddr4
}

// Toward is the command line of a client in a mode whose server listens at ServerAddr and a port. Client
// makes it, with the address that the client connects to.
func (r *Runner) Toward(m Mode, network string, port uint16, client func(addr string) []string) []string {
	server := netip.AddrPortFrom(r.ServerAddr(m), port)
	switch m {
	case Translated, TranslatedSeccomp:
		return append([]string{"sh", "-c", resolveScript, ServerName}, client(ServerName)...)
	case Tayga:
		return r.beside(m, network, netip.AddrPort{}, netip.AddrPort{}, client(taygaRemote4))
	case HAProxy, Socat:
		proxy := netip.AddrPortFrom(localhost, port)
		return r.beside(m, network, proxy, server, client(localhost.String()))
	}
	return client(server.Addr().String())
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ListenAddr is where a server in a mode listens.
func (r *Runner) ListenAddr(m Mode) netip.Addr {
	if m == IPv6 {
		return testkit.HostAddr6
	}
	return netip.IPv4Unspecified()
}

// PublishedAddr is where clients on the remote reach it.
func (r *Runner) PublishedAddr(m Mode) netip.Addr {
	switch {
	case m == Tayga:
		return taygaClient
	case m.isOnIPv6() && m != IPv4:
		return testkit.HostAddr6
	}
	return testkit.HostAddr4
}

// Publish starts a server in a mode, which listens at ListenAddr and a port of a network. Clients on the
// remote reach it at PublishedAddr. Modes that are not of a host without IPv4 publish TCP ports. End ends
// the server.
func (r *Runner) Publish(ctx context.Context, m Mode, network string, port uint16, argv ...string) (end func(), err error) {
	var cmd *testkit.Cmd
	number := strconv.Itoa(int(port))
	outside, inside := netip.AddrPortFrom(r.PublishedAddr(m), port), netip.AddrPortFrom(localhost, port)
	switch {
	case m.IsDocker():
		return r.docker.publish(ctx, m, r.clientCPU(), port, argv)
	case m == NAT:
		if err := r.translate(ctx, number); err != nil {
			return nil, err
		}
		cmd = r.Client(ctx, m, argv...)
	case m.IsGraft():
		cmd = r.client(ctx, m, []string{"-p", outside.String() + ":" + number}, argv...)
	case m.isTranslated():
		cmd = r.client(ctx, m, []string{"-i", fmt.Sprintf("0.0.0.0:%d=%s", port, outside)}, argv...)
	case m == Tayga || m == HAProxy || m == Socat:
		cmd = r.Client(ctx, m, r.beside(m, network, outside, inside, argv)...)
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	case m.isPeer():
		cmd = r.Client(ctx, Host, peer(m, port, argv)...)
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	default:
		cmd = r.Client(ctx, m, argv...)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server %s in mode %s: %w", argv[0], m, err)
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // or it has ended
		_ = cmd.Wait()                          // by the signal
	}, nil
}

// translate publishes a TCP port of the container behind NAT, as container engines do.
func (r *Runner) translate(ctx context.Context, port string) error {
	const chain = "add table ip publish; add chain ip publish in { type nat hook prerouting priority dstnat; }; "
	to := "tcp dport " + port
	return r.onHost(ctx, "nft", chain+"add rule ip publish in "+to+" dnat to "+testkit.ContainerAddr4(0).String()+
		"; insert rule ip engine forward "+to+" accept")
}
