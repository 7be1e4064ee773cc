package modes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// Ways of a program to an IPv6 host. The host has no IPv4 address but on its loopback, and the remote
// has none.
const (
	// IPv6 is a process of the host that knows IPv6, what others compare to.
	IPv6 Mode = "ipv6"
	// IPv4 is a process of another host, which has IPv4, as its remote has.
	IPv4 Mode = "ipv4"
	// The others are processes that know IPv4 only. Translated and TranslatedSeccomp are started by
	// tsugiki run --translate, in mode auto and, a static program, in mode seccomp.
	Translated        Mode = "translated"
	TranslatedSeccomp Mode = "translated-seccomp"
	// Tayga is a process in a container that has IPv4 on a TUN device, where tayga translates
	// packets, and IPv6 on a veth link to the host.
	Tayga Mode = "tayga"
	// HAProxy and Socat are processes of the host. They talk to a proxy at 127.0.0.1.
	HAProxy Mode = "haproxy"
	Socat   Mode = "socat"
)

// OnIPv6 are the modes of a host without IPv4, in the order of tables. They are not among Modes.
var OnIPv6 = []Mode{IPv6, IPv4, Translated, TranslatedSeccomp, Tayga, HAProxy, Socat}

func (m Mode) isOnIPv6() bool { return slices.Contains(OnIPv6, m) }

// IsStatic tells whether a mode is measured with a static program.
func (m Mode) IsStatic() bool { return m == TranslatedSeccomp }

// Carries tells whether a mode has a way for a network, which is tcp or udp.
func (m Mode) Carries(network string) bool { return m != HAProxy || network == "tcp" }

func (m Mode) isTranslated() bool { return m == Translated || m == TranslatedSeccomp }

// mode is that of tsugiki run.
func (m Mode) mode() string {
	switch m {
	case Translated:
		return string(Auto)
	case TranslatedSeccomp:
		return string(Seccomp)
	}
	return string(m)
}

// What container and addresses the modes have, besides testkit's.
var (
	taygaLink   = netip.MustParsePrefix("2001:db8:3::/64")
	taygaHost   = netip.MustParseAddr("2001:db8:3::1")
	taygaAddr6  = netip.MustParseAddr("2001:db8:3::2")
	taygaClient = netip.MustParseAddr("2001:db8:3::46") // what its IPv4 address becomes
)

const (
	taygaOwn4    = "192.0.0.2"
	taygaRemote4 = "198.18.0.1"
)

// ServerName is the remote's name for translated programs.
const ServerName = "server.example"

// taygaConfig translates one address of the container's and that of the remote, without a state. Tayga
// takes an address of each family for errors that it reports itself.
const taygaConfig = `tun-device nat64
ipv4-addr 192.0.0.1
ipv6-addr 2001:db8:3::ffff
map %s %s
map %s %s
`

// prepareOnIPv6 makes what the modes need besides the host and the remote.
func (r *Runner) prepareOnIPv6(ctx context.Context) (err error) {
	if !slices.ContainsFunc(r.modes, Mode.isOnIPv6) {
		return nil
	}
	if r.dir, err = os.MkdirTemp("", "tsugiki-modes-"); err != nil {
		return err
	}
	needed := map[Mode][]string{
		Translated: {"dnsmasq", "getent"}, TranslatedSeccomp: {"dnsmasq", "getent"},
		Tayga: {"tayga", "ip"}, HAProxy: {"haproxy", "ss"}, Socat: {"socat", "ss"},
	}
	for _, m := range r.modes {
		if err := testkit.Programs(needed[m]...); err != nil {
			return err
		}
	}
	if slices.Contains(r.modes, IPv4) {
		r.ipv4, err = testkit.New(ctx, testkit.Options{CongestionControl: r.CongestionControl})
		if err != nil {
			return err
		}
	}
	if slices.Contains(r.modes, Tayga) {
		if err := r.prepareTayga(ctx); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(r.modes, Mode.isTranslated) {
		return r.prepareTranslated(ctx)
	}
	return nil
}

// prepareTayga makes the container. Its TUN device stays, and tayga runs beside each program.
func (r *Runner) prepareTayga(ctx context.Context) (err error) {
	o := testkit.Options{IPv6Only: true, NoRemote: true, CongestionControl: r.CongestionControl}
	if r.tayga, err = testkit.New(ctx, o); err != nil {
		return err
	}
	config := fmt.Appendf(nil, taygaConfig, taygaOwn4, taygaClient, taygaRemote4, testkit.RemoteAddr6)
	if err := os.WriteFile(r.taygaConfig(), config, 0o644); err != nil {
		return err
	}
	host, container, remote := r.Top.Host, r.tayga.Host, r.Top.Remote
	for _, c := range []struct {
		ns   *testkit.Namespace
		line string
	}{
		{host, "ip link add name tayga type veth peer name eth0 netns " + container.Path()},
		{host, fmt.Sprintf("ip address add %s/64 dev tayga nodad", taygaHost)},
		{host, "ip link set dev tayga up"},
		{host, fmt.Sprintf("ip route add %s via %s", taygaClient, taygaAddr6)},
		{remote, fmt.Sprintf("ip route add %s via %s", taygaLink, testkit.HostAddr6)},
		{container, fmt.Sprintf("ip address add %s/64 dev eth0 nodad", taygaAddr6)},
		{container, "ip link set dev eth0 up"},
		{container, fmt.Sprintf("ip route add default via %s", taygaHost)},
		{container, "tayga --mktun --config " + r.taygaConfig()},
		{container, "ip link set dev nat64 up"},
		{container, "ip address add " + taygaOwn4 + " dev nat64"},
		// IPv6 has a longer header: 1500 bytes on the link are 1480 of IPv4.
		{container, "ip route add " + taygaRemote4 + " dev nat64 mtu 1480"},
		{container, fmt.Sprintf("ip route add %s dev nat64", taygaClient)},
	} {
		if err := runIn(ctx, c.ns, strings.Fields(c.line)...); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) taygaConfig() string { return filepath.Join(r.dir, "tayga.conf") }

// prepareTranslated starts a resolver on the remote, and finds out whether all modes are there.
func (r *Runner) prepareTranslated(ctx context.Context) error {
	_, err := r.Serve(ctx, IPv6, "udp", []uint16{53}, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=",
		"--user=root", "--no-resolv", "--no-hosts", "--local=/#/", fmt.Sprintf("--host-record=%s,%s", ServerName, testkit.RemoteAddr6))
	if err != nil {
		return err
	}
	for _, m := range slices.Clone(r.modes) {
		if !m.isTranslated() {
			continue
		}
		argv := r.translated(m, []string{"--dry-run"}, []string{"true"})
		out, err := r.Top.Host.Command(ctx, argv[0], argv[1:]...).CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && m == Translated:
			said, _, _ := strings.Cut(string(out), "\n")
			r.Missing = append(r.Missing, fmt.Sprintf("mode %s is missing: %s", m, said))
			r.modes = slices.DeleteFunc(slices.Clone(r.modes), func(other Mode) bool { return other == m })
		default:
			return fmt.Errorf("mode %s: %w: %s", m, err, out)
		}
	}
	return nil
}

// translated is the command line of a translated program.
func (r *Runner) translated(m Mode, flags, argv []string) []string {
	return slices.Concat([]string{
		r.tsugiki, "run", "--agent", "none", "--mode", m.mode(), "--translate", "--dns", netip.AddrPortFrom(testkit.RemoteAddr6, 53).String(),
	}, flags, []string{"--"}, argv)
}

// resolveScript runs a program with the IPv4 address of a name in the place of the name.
// usage: sh -c SCRIPT NAME PROGRAM...
const resolveScript = `address=$(getent ahostsv4 "$0") || { echo "no address of $0" >&2; exit 1; }
address=${address%% *}
for argument; do
	shift
	[ "$argument" != "$0" ] || argument=$address
	set -- "$@" "$argument"
done
exec "$@"
`

// besideScript runs a program beside a helper, which carries its packets or bytes, when the helper is
// ready. It ends the helper's children, too.
// usage: sh -c SCRIPT HELPER READY PROGRAM...; HELPER and READY are command lines
const besideScript = `ready=$1; shift
sh -c "exec $0" >&2 &
helper=$!
program=
end() {
	kill $program $(cat /proc/$helper/task/$helper/children 2>/dev/null) $helper 2>/dev/null || :
	wait || :
}
trap end EXIT
trap 'exit 1' TERM
until eval "$ready"; do
	kill -0 $helper 2>/dev/null || exit 1
	sleep 0.02
done
"$@" &
program=$!
wait $program
`

// Lead is a way through a proxy: what comes to one address goes to the other one.
type Lead struct{ From, To netip.AddrPort }

const haproxyDefaults = `defaults
	mode tcp
	option splice-auto
	timeout connect 1m
	timeout client 1h
	timeout server 1h
`

// HAProxyConfig is haproxy's configuration for some ways. The kernel moves the bytes (splice(2)) where
// haproxy finds that worthwhile.
func HAProxyConfig(leads ...Lead) string {
	config := haproxyDefaults
	for i, l := range leads {
		config += fmt.Sprintf("listen proxy%d\n\tbind %s\n\tserver server %s\n", i, l.From, l.To)
	}
	return config
}

// haproxyScript runs haproxy with a configuration.
const haproxyScript = "haproxy -db -f /dev/stdin <<'END'\n%sEND"

// beside is the command line of a program with the helper of a mode, which takes what comes to one
// address to the other one.
func (r *Runner) beside(m Mode, network string, from, to netip.AddrPort, argv []string) []string {
	ready := fmt.Sprintf("ss -Hln --%s 'src %s' | grep -q .", network, from)
	var helper string
	switch m {
	case Tayga:
		helper, ready = "tayga --nodetach --config "+r.taygaConfig(), "ip link show dev nat64 | grep -q LOWER_UP"
	case HAProxy:
		helper = fmt.Sprintf(haproxyScript, HAProxyConfig(Lead{from, to}))
	case Socat:
		helper = fmt.Sprintf("socat %s-LISTEN:%d,bind=%s,fork,reuseaddr %s:%s", socatType(network, from), from.Port(),
			hostOf(from), socatType(network, to), to)
	}
	return append([]string{"sh", "-c", besideScript, helper, ready}, argv...)
}

// socatType is the type of socat's address, such as TCP4.
func socatType(network string, at netip.AddrPort) string {
	if at.Addr().Is6() {
		return strings.ToUpper(network) + "6"
	}
	return strings.ToUpper(network) + "4"
}

// hostOf is an address without its port, as in URLs.
func hostOf(at netip.AddrPort) string {
	return strings.TrimSuffix(at.String(), fmt.Sprintf(":%d", at.Port()))
}
