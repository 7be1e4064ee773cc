package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bench/folder"
	"github.com/tsugiki/tsugiki/bench/modes"
	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/testkit/machine"
)

// config says what a rig is to have.
type config struct {
	accelerator machine.Accelerator
	kernel      string // as in machine.Machine
	congestion  string // congestion control of the host and the remote
	modes       []string
}

// rig has everything of one accelerator: a network for each setting, the guests, and what carries their
// bytes.
type rig struct {
	config
	preload, tsugiki, netdrive string // paths
	folder                     *folder.Folder
	networks                   map[string]*testkit.Topology // by setting
	lan                        *testkit.Topology            // where User-Mode Linux and slirp4netns meet, or nil
	roots                      map[bool]string              // initramfs, without and with haproxy
	ways                       []*way
	guests                     []*guest
	daemons                    []*testkit.Cmd // that are ended by SIGTERM, the last first
}

// newRig makes all ways, and waits until their servers answer. The rig has to be closed also after an
// error.
func newRig(ctx context.Context, c config) (r *rig, err error) {
	r = &rig{config: c, networks: map[string]*testkit.Topology{}, roots: map[bool]string{}}
	err = errors.Join(c.accelerator.Needs(), testkit.Programs("ip", "haproxy", "dnsmasq", "slirp4netns"))
	if err != nil {
		return r, err
	}
	if r.folder, err = folder.Make("tsugiki-vm-bench-"); err != nil {
		return r, err
	}
	for _, step := range []func(context.Context) error{r.build, r.network, r.translatedNetwork, r.boot, r.ready} {
		if err := step(ctx); err != nil {
			return r, err
		}
	}
	return r, nil
}

// close ends everything: the guests power off, what serves them ends by itself, and then the networks go.
func (r *rig) close() error {
	var errs []error
	for _, g := range r.guests {
		errs = append(errs, g.end())
	}
	for i := len(r.daemons) - 1; i >= 0; i-- {
		_ = r.daemons[i].Process.Signal(unix.SIGTERM) // or it has ended
		_ = r.daemons[i].Wait()                       // most end by the signal
	}
	for _, top := range r.networks {
		errs = append(errs, top.Close())
	}
	if r.lan != nil {
		errs = append(errs, r.lan.Close())
	}
	if r.folder != nil {
		errs = append(errs, r.folder.Remove())
	}
	return errors.Join(errs...)
}

// build makes the programs and the guests' file systems.
func (r *rig) build(ctx context.Context) error {
	bin, err := testkit.Binaries()
	if err != nil {
		return fmt.Errorf("find tsugiki: %w", err)
	}
	r.tsugiki = filepath.Join(bin, "tsugiki")
	if r.netdrive, err = netdrive.BuildStatic(ctx, r.folder.Path); err != nil {
		return err
	}
	if r.accelerator == machine.UML {
		if r.preload, err = machine.Preload(ctx, r.folder.Path); err != nil {
			return err
		}
	}
	for _, proxy := range []bool{false, true} {
		// The guest with the proxy has IPv6 alone on its link, and the others know IPv4 alone.
		modules, err := r.accelerator.Modules(r.kernel, proxy)
		if err != nil {
			return err
		}
		root := machine.Root{Script: consoleScript, Modules: modules, Files: map[string]string{
			"bin/tsugiki": r.tsugiki, "bin/client": r.netdrive, "bin/server": r.netdrive,
		}}
		if proxy {
			if err := root.AddProgram("haproxy"); err != nil {
				return err
			}
		}
		r.roots[proxy] = filepath.Join(r.folder.Path, fmt.Sprintf("initramfs-%v", proxy))
		if err := root.Write(r.roots[proxy]); err != nil {
			return err
		}
	}
	return nil
}

// network makes the network of a host that has IPv4.
func (r *rig) network(ctx context.Context) (err error) {
	top, err := testkit.New(ctx, testkit.Options{CongestionControl: r.congestion})
	if err != nil {
		return err
	}
	r.networks[plain] = top
	if err := run(ctx, top.Remote, "ip route add %s via %s", guests4, testkit.HostAddr4); err != nil {
		return err
	}
	if r.accelerator == machine.UML {
		r.lan, err = testkit.New(ctx, testkit.Options{NoRemote: true})
	}
	return err
}

// translatedNetwork makes that of a host without IPv4. Its resolver tells the prefix of NAT64
// (RFC 7050), and the remote has an address in it.
func (r *rig) translatedNetwork(ctx context.Context) error {
	top, err := testkit.New(ctx, testkit.Options{IPv6Only: true, CongestionControl: r.congestion})
	if err != nil {
		return err
	}
	r.networks[translated] = top
	err = errors.Join(run(ctx, top.Remote, "ip route add %s via %s", guests6, testkit.HostAddr6),
		run(ctx, top.Remote, "ip addr add %s/128 dev h", nat64Remote), run(ctx, top.Host, "ip route add %s via %s", nat64, testkit.RemoteAddr6))
	if err != nil {
		return err
	}
	err = r.daemon(ctx, top.Remote, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv",
		"--no-hosts", "--local=/#/", "--host-record=ipv4only.arpa,2001:db8:64::192.0.0.170")
	if err != nil {
		return err
	}
	return top.Remote.WaitListen(ctx, "tcp", 53)
}

// boot makes the ways. Guests boot side by side.
func (r *rig) boot(ctx context.Context) error {
	for _, all := range []struct {
		setting, mode string
		make          func(context.Context, *way) error
	}{
		{plain, outsourced, r.outsourced},
		{plain, onTAP, r.onTAP},
		{plain, onSlirp, r.onSlirp},
		{plain, native, r.native},
		{translated, outsourced, r.outsourcedTranslated},
		{translated, proxyHost, r.proxyOnHost},
		{translated, proxyGuest, r.proxyInGuest},
		{translated, native, r.nativeTranslated},
		{translated, hostProxy, r.nativeProxy},
	} {
		if !slices.Contains(r.modes, all.mode) {
			continue
		}
		w := &way{setting: all.setting, mode: all.mode, port: uint16(firstPort + portsOfWay*len(r.ways))}
		r.ways = append(r.ways, w)
		if err := all.make(ctx, w); err != nil {
			return fmt.Errorf("make way %s, %s: %w", w.setting, w.mode, err)
		}
		if err := r.serve(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// serve starts the remote's servers of a way.
func (r *rig) serve(ctx context.Context, w *way) error {
	top, address := r.networks[w.setting], "0.0.0.0"
	if w.setting == translated {
		address = "::"
	}
	w.remote = host{top.Remote, r.netdrive}
	for _, args := range [][]string{{"tcp_stream", address, w.at(streamPort)}, {"tcp_rr", address, w.at(echoPort), "-s", echoSize}} {
		server, err := w.remote.start(ctx, append(append([]string{"server"}, args...), "-t", serverLimit)...)
		if err != nil {
			return err
		}
		if args[0] == "tcp_stream" {
			w.streams = server.pid
		}
	}
	return errors.Join(top.Remote.WaitListen(ctx, "tcp", w.port+streamPort), top.Remote.WaitListen(ctx, "tcp", w.port+echoPort))
}

// ready waits for the guests, and starts the ways' own servers.
func (r *rig) ready(ctx context.Context) error {
	for _, w := range r.ways {
		err := r.prepare(ctx, w)
		if err == nil {
			err = w.await(ctx)
		}
		if err != nil {
			return fmt.Errorf("make way %s, %s: %w", w.setting, w.mode, err)
		}
	}
	return nil
}

// prepare starts a way's own server, in a guest after what has to be done there.
func (r *rig) prepare(ctx context.Context, w *way) error {
	if g, ok := w.place.(*guest); ok {
		if _, _, err := g.await(ctx); err != nil {
			return fmt.Errorf("boot guest: %w", err)
		}
		for _, line := range w.setUp {
			if _, err := g.run(ctx, line); err != nil {
				return err
			}
		}
	}
	server, err := w.place.start(ctx, "server", "tcp_stream", w.listen.String(), w.at(ownPort), "-t", serverLimit)
	if err == nil && server.pid != 0 {
		w.spend = append(w.spend, server.pid)
	}
	return err
}

// firstTry bounds the first try to reach a server: a process between accepts connections, and loses those
// that it made before the server listened. A try that had too little time is followed by one with twice as
// much, as others may have the machine.
const firstTry = time.Second

// await waits until a way's own server answers the remote.
func (w *way) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	for limit := firstTry; ; {
		try, end := context.WithTimeout(ctx, limit)
		_, err := w.remote.output(try, "client", "tcp_stream", w.reach.String(), w.at(ownPort), "-t", "0.001")
		if try.Err() != nil {
			limit *= 2
		}
		end()
		if err == nil {
			return nil
		}
		if perr := pause(ctx, 20*time.Millisecond); perr != nil {
			return fmt.Errorf("wait for the way's own server: %w", err)
		}
	}
}

// guest starts a virtual machine, whose script then waits for lines.
func (r *rig) guest(ctx context.Context, w *way, ns *testkit.Namespace, proxy bool, m machine.Machine) error {
	m.Accelerator, m.Kernel, m.Preload, m.Keyboard, m.Initramfs = r.accelerator, r.kernel, r.preload, true, r.roots[proxy]
	m.Dir = filepath.Join(r.folder.Path, fmt.Sprintf("guest%d", len(r.guests)))
	if err := os.Mkdir(m.Dir, 0o700); err != nil {
		return err
	}
	vmm, err := m.Command(ctx, ns)
	if err != nil {
		return err
	}
	c, err := newConsole(vmm)
	if err != nil {
		return err
	}
	if err := vmm.Start(); err != nil {
		return fmt.Errorf("start VMM: %w", err)
	}
	g := &guest{console: c, vmm: vmm}
	r.guests = append(r.guests, g)
	w.place, w.spend = g, append(w.spend, vmm.Process.Pid)
	return nil
}

// daemon starts a program in a namespace, which runs until the rig is closed.
func (r *rig) daemon(ctx context.Context, ns *testkit.Namespace, name string, args ...string) error {
	cmd := ns.Command(ctx, name, args...)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	log, err := os.Create(filepath.Join(r.folder.Path, fmt.Sprintf("log%d", len(r.daemons))))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	r.daemons = append(r.daemons, cmd)
	return nil
}

// lastDaemon is the one that was started last.
func (r *rig) lastDaemon() int { return r.daemons[len(r.daemons)-1].Process.Pid }

// proxy starts haproxy on the host.
func (r *rig) proxy(ctx context.Context, w *way, leads ...modes.Lead) error {
	ns := r.networks[w.setting].Host
	config := filepath.Join(r.folder.Path, fmt.Sprintf("haproxy%d.cfg", w.port))
	if err := os.WriteFile(config, []byte(modes.HAProxyConfig(leads...)), 0o600); err != nil {
		return err
	}
	if err := r.daemon(ctx, ns, "haproxy", "-db", "-f", config); err != nil {
		return err
	}
	w.spend = append(w.spend, r.lastDaemon())
	return ns.WaitListen(ctx, "tcp", w.port+ownPort)
}

// run runs a command line in a namespace.
func run(ctx context.Context, ns *testkit.Namespace, format string, args ...any) error {
	words := strings.Fields(fmt.Sprintf(format, args...))
	if out, err := ns.Command(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}

// at is an address with a port of the way's.
func (w *way) addrPort(a netip.Addr, which uint16) netip.AddrPort {
	return netip.AddrPortFrom(a, w.port+which)
}
