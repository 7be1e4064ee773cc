package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
)

// The ways. Each function makes what its way needs, and starts its guest.

func (r *rig) outsourced(ctx context.Context, w *way) error {
	w.dial, w.listen, w.reach = testkit.RemoteAddr4, wildcard4, testkit.HostAddr4
	return r.attach(ctx, w, "-e", "0.0.0.0/0=0.0.0.0")
}

func (r *rig) outsourcedTranslated(ctx context.Context, w *way) error {
	w.dial, w.listen, w.reach = testkit.RemoteAddr4, wildcard4, testkit.HostAddr6
	return r.attach(ctx, w, "--translate", "--dns", netip.AddrPortFrom(testkit.RemoteAddr6, 53).String(), "-e", "::/0=::")
}

// attach starts tsugiki guest attach with rules, and a guest without a network card.
func (r *rig) attach(ctx context.Context, w *way, rules ...string) error {
	ns := r.networks[w.setting].Host
	dir := filepath.Join(r.folder.Path, fmt.Sprintf("attach%d", w.port))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	socket := filepath.Join(dir, "vsock")
	args := append([]string{
		"guest", "attach", "--vsock", socket, "--name", fmt.Sprintf("vm%d-%d", os.Getpid(), w.port), "--run-dir", filepath.Join(dir, "run"),
		"-i", w.addrPort(w.listen, ownPort).String() + "=" + w.addrPort(w.reach, ownPort).String(),
	}, rules...)
	if err := r.daemon(ctx, ns, r.tsugiki, args...); err != nil {
		return err
	}
	w.spend = append(w.spend, r.lastDaemon())
	if err := awaitFile(ctx, socket); err != nil {
		return err
	}
	if err := r.guest(ctx, w, ns, false, machine.Machine{Vsock: socket}); err != nil {
		return err
	}
	w.place.(*guest).prefix = "tsugiki guest run -- "
	return nil
}

func awaitFile(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("wait for a socket: %w", err)
		}
	}
}

// card is the name of the guest's network card.
func (r *rig) card() string {
	if r.accelerator == machine.UML {
		return "vec0"
	}
	return "eth0"
}

// tap makes a TAP device with an address, and starts a guest on it. lines are for the guest.
func (r *rig) tap(ctx context.Context, w *way, proxy bool, ours, theirs netip.Prefix, lines ...string) error {
	ns, name := r.networks[w.setting].Host, fmt.Sprintf("tap%d", len(r.guests))
	err := errors.Join(run(ctx, ns, "ip tuntap add dev %s mode tap", name), run(ctx, ns, "ip addr add %s dev %s nodad", ours, name),
		run(ctx, ns, "ip link set dev %s up", name))
	if err != nil {
		return err
	}
	w.setUp = append(w.setUp, fmt.Sprintf("ip addr add %s dev %s", theirs, r.card()), fmt.Sprintf("ip link set %s up", r.card()),
		fmt.Sprintf("ip route add default via %s", ours.Addr()))
	w.setUp = append(w.setUp, lines...)
	return r.guest(ctx, w, ns, proxy, machine.Machine{TAP: name})
}

func (r *rig) onTAP(ctx context.Context, w *way) error {
	number := len(r.guests)
	w.dial, w.listen, w.reach = testkit.RemoteAddr4, wildcard4, link4(number, 2)
	return r.tap(ctx, w, false, netip.PrefixFrom(link4(number, 1), 24), netip.PrefixFrom(link4(number, 2), 24))
}

func (r *rig) proxyOnHost(ctx context.Context, w *way) error {
	number := len(r.guests)
	ours, theirs := link4(number, 1), link4(number, 2)
	w.dial, w.listen, w.reach = ours, wildcard4, testkit.HostAddr6
	if err := r.tap(ctx, w, false, netip.PrefixFrom(ours, 24), netip.PrefixFrom(theirs, 24)); err != nil {
		return err
	}
	return r.proxy(ctx, w, w.leads(ours, testkit.HostAddr6, theirs)...)
}

// leads are the ways through a proxy that has an address for programs of the way, and one for the remote,
// and that finds the way's own server at a third one.
func (w *way) leads(inside, outside, own netip.Addr) []modes.Lead {
	return []modes.Lead{
		{From: w.addrPort(inside, streamPort), To: w.addrPort(testkit.RemoteAddr6, streamPort)},
		{From: w.addrPort(inside, echoPort), To: w.addrPort(testkit.RemoteAddr6, echoPort)},
		{From: w.addrPort(outside, ownPort), To: w.addrPort(own, ownPort)},
	}
}

func (r *rig) proxyInGuest(ctx context.Context, w *way) error {
	number := len(r.guests)
	ours, theirs := link6(number, 1), link6(number, 2)
	w.dial, w.listen, w.reach = loopback4, loopback4, theirs
	w.setUp = []string{"echo 0 >/proc/sys/net/ipv6/conf/" + r.card() + "/accept_dad"}
	config := modes.HAProxyConfig(w.leads(loopback4, theirs, loopback4)...)
	return r.tap(ctx, w, true, netip.PrefixFrom(ours, 64), netip.PrefixFrom(theirs, 64),
		fmt.Sprintf("printf %q >/etc/haproxy.cfg", config), "haproxy -D -f /etc/haproxy.cfg")
}

func (r *rig) native(_ context.Context, w *way) error {
	w.dial, w.listen, w.reach = testkit.RemoteAddr4, wildcard4, testkit.HostAddr4
	w.place = host{r.networks[w.setting].Host, r.netdrive}
	return nil
}

func (r *rig) nativeTranslated(_ context.Context, w *way) error {
	w.dial, w.listen, w.reach = testkit.RemoteAddr6, netip.IPv6Unspecified(), testkit.HostAddr6
	w.place = host{r.networks[w.setting].Host, r.netdrive}
	return nil
}

func (r *rig) nativeProxy(ctx context.Context, w *way) error {
	w.dial, w.listen, w.reach = loopback4, loopback4, testkit.HostAddr6
	w.place = host{r.networks[w.setting].Host, r.netdrive}
	return r.proxy(ctx, w, w.leads(loopback4, testkit.HostAddr6, loopback4)...)
}

func (r *rig) onSlirp(ctx context.Context, w *way) error {
	w.dial, w.listen, w.reach = testkit.RemoteAddr4, wildcard4, testkit.HostAddr4
	w.setUp = []string{
		fmt.Sprintf("ip addr add %s/24 dev %s", slirpGuest, r.card()), fmt.Sprintf("ip link set %s up", r.card()),
		fmt.Sprintf("ip route add default via %s", slirpHost),
	}
	if r.accelerator == machine.UML {
		return r.slirp4netns(ctx, w)
	}
	forward := fmt.Sprintf("tcp:%s-%s", w.addrPort(testkit.HostAddr4, ownPort), w.addrPort(slirpGuest, ownPort))
	return r.guest(ctx, w, r.networks[plain].Host, false, machine.Machine{NAT: true, Forwards: []string{forward}})
}

// slirp4netns starts one whose TAP device is on a bridge with that of the guest.
func (r *rig) slirp4netns(ctx context.Context, w *way) error {
	const ours, theirs = "slirp", "guest"
	lan, api := r.lan.Host, filepath.Join(r.folder.Path, "slirp4netns.sock")
	err := r.daemon(ctx, r.networks[plain].Host, "slirp4netns", "--netns-type=path", "--api-socket="+api, lan.Path(), ours)
	if err != nil {
		return err
	}
	w.spend = append(w.spend, r.lastDaemon())
	if err := awaitFile(ctx, api); err != nil {
		return err
	}
	if err := awaitLink(ctx, lan, ours); err != nil {
		return err
	}
	for _, line := range []string{"ip link add br0 type bridge", "ip link set br0 up", "ip tuntap add dev guest mode tap"} {
		if err := run(ctx, lan, "%s", line); err != nil {
			return err
		}
	}
	for _, name := range []string{ours, theirs} {
		if err := run(ctx, lan, "ip link set %s master br0 up", name); err != nil {
			return err
		}
	}
	if err := addForward(ctx, api, w.addrPort(testkit.HostAddr4, ownPort), w.addrPort(slirpGuest, ownPort)); err != nil {
		return err
	}
	return r.guest(ctx, w, lan, false, machine.Machine{TAP: theirs})
}

func awaitLink(ctx context.Context, ns *testkit.Namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for {
		err := ns.Do(func() error {
			_, err := netlink.LinkByName(name)
			return err
		})
		if err == nil {
			return nil
		}
		if pause(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("wait for the link of slirp4netns: %w", err)
		}
	}
}

// addForward has slirp4netns lead a port of the host's to the guest (its manual, "API SOCKET").
func addForward(ctx context.Context, api string, from, to netip.AddrPort) error {
	request, err := json.Marshal(map[string]any{"execute": "add_hostfwd", "arguments": map[string]any{
		"proto": "tcp", "host_addr": from.Addr(), "host_port": from.Port(), "guest_addr": to.Addr(), "guest_port": to.Port(),
	}})
	if err != nil {
		return err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", api)
	if err != nil {
		return fmt.Errorf("ask slirp4netns: %w", err)
	}
	defer c.Close()
	if _, err = c.Write(request); err == nil {
		err = c.(*net.UnixConn).CloseWrite()
	}
	var said []byte
	if err == nil {
		said, err = io.ReadAll(c)
	}
	var answer struct{ Error any }
	if err == nil {
		err = json.Unmarshal(said, &answer)
	}
	if err == nil && answer.Error != nil {
		err = fmt.Errorf("it says %s", said)
	}
	if err != nil {
		return fmt.Errorf("ask slirp4netns: %w", err)
	}
	return nil
}
