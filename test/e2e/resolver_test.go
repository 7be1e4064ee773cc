package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// serverName is a name of the remote's, for both families, and anyName one of the wildcard. largeName has an answer that does not fit into a datagram.
const (
	serverName = "server.example.org"
	anyName    = "any.example.org"
	largeName  = "large.example.org"
)

// dnsmasq is the command of a name server that knows these names and nothing
// else.
func dnsmasq(t *testing.T, port int) []string {
	t.Helper()
	hosts := fmt.Sprintf("%s %s\n%s %s\n%s %s\n", remoteAddr4, serverName, remoteAddr6, serverName, "0.0.0.0", anyName)
	for i := range 200 {
		hosts += fmt.Sprintf("203.0.113.%d %s\n", i, largeName)
	}
	path := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(path, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{
		testkit.Program(t, "dnsmasq"), "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root",
		"--no-resolv", "--no-hosts", "--addn-hosts=" + path, "--local=/#/", "--port=" + fmt.Sprint(port),
		"--log-queries", "--log-facility=-",
	}
}

// resolving is a command in a mount namespace in which the resolver asks the
// name server at an address. The machine's own files stay as they are.
func resolving(t *testing.T, addr string, line ...string) []string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"resolv.conf":   "nameserver " + addr + "\noptions timeout:30 attempts:2\n",
		"nsswitch.conf": "hosts: files dns\n",
		"hosts":         "127.0.0.1 localhost\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const script = `dir=$1; shift
for f in resolv.conf nsswitch.conf hosts; do mount --bind "$dir/$f" "/etc/$f"; done
exec "$@"`
	return append([]string{"unshare", "--mount", "sh", "-e", "-c", script, "sh", dir}, line...)
}

// resolverTest is a program that prints what it gets from the name's observer,
// or the addresses of a name.
type resolverTest struct {
	name string
	line []string
	want string // in any order of lines; "" is either address of the endpoints
	// by is whose system calls ask the name server: the program's own, of a
	// library that can be preloaded before, "libc" or "static".
	by string
}

// perlLookup prints the IPv4 addresses of a host.
const perlLookup = `my ($err, @found) = getaddrinfo($ARGV[0], "", {family => AF_INET, socktype => SOCK_STREAM, flags => AI_ADDRCONFIG});
die "$err\n" if $err;
print inet_ntoa((unpack_sockaddr_in($_->{addr}))[1]), "\n" for @found;`

func resolverTests(t *testing.T) []resolverTest {
	t.Helper()
	url := fmt.Sprintf("http://%s:%d", serverName, observerPort)
	addrs := remoteAddr4 + "\n" + remoteAddr6 + "\n"
	large := ""
	for i := range 200 {
		large += fmt.Sprintf("203.0.113.%d\n", i)
	}
	getent := func(db, name string) []string {
		return []string{"sh", "-c", "getent " + db + " " + name + ` | awk '$2 == "STREAM" { print $1 }'`}
	}
	return []resolverTest{
		{"dig", []string{"dig", "+short", serverName, "A", serverName, "AAAA"}, addrs, ""},
		{"dig-tcp", []string{"dig", "+short", "+tcp", serverName, "A", serverName, "AAAA"}, addrs, ""},
		{"dig-truncated", []string{"dig", "+short", "+bufsize=512", largeName}, large, ""},
		{"getent", getent("ahosts", serverName), addrs, "libc"},
		// They ask for a family only where an address of it is not the loopback's
		// (AI_ADDRCONFIG), and a container may have no other interface.
		{"getent4", getent("ahostsv4", serverName), remoteAddr4 + "\n", "libc"},
		{"getent6", getent("ahostsv6", serverName), remoteAddr6 + "\n", "libc"},
		{"perl", []string{"perl", "-MSocket=:all", "-e", perlLookup, serverName}, remoteAddr4 + "\n", "libc"},
		{"getent-truncated", getent("ahosts", largeName), large, "libc"},
		{"curl", []string{"curl", "-4", "-sS", url}, sourceAddr4 + "\n", "libc"},
		{"curl6", []string{"curl", "-6", "-sS", url}, sourceAddr6 + "\n", "libc"},
		{"node", []string{"node", "testdata/runtimes/net.js", "fetch", url}, "", "libc"},
		{"java", []string{"java", "-XX:TieredStopAtLevel=1", "-cp", javaClasses(t), "Net", "fetch", url}, "", "libc"},
		{"go", []string{static(t, "fetch"), url}, "", "static"},
		{"musl", []string{tokioProgram(t), "fetch", url}, "", "static"},
		{"python", []string{python(t), "testdata/runtimes/net.py", "asyncio", "fetch", url}, "", "libc"},
	}
}

func (p resolverTest) check(t *testing.T, out string) {
	t.Helper()
	if p.want == "" {
		if out != sourceAddr4+"\n" && out != sourceAddr6+"\n" {
			t.Errorf("the remote answered %q", out)
		}
	} else if got, want := sorted(out), sorted(p.want); !slices.Equal(got, want) {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// TestResolver has programs ask a name server on the remote, as resolv.conf
// says, by the libraries that they have for it. That of glibc is asked by calls
// that no preloaded library sees.
func TestResolver(t *testing.T) {
	t.Parallel()
	programs := resolverTests(t)
	all := inModes(t.Name(), both)
	picked := cover(all, len(programs), func(v variant, i int) bool { return programs[i].by == "" || !v.mode.preloaded })
	each(t, all, func(t *testing.T, w *world, v variant) {
		server := dnsmasq(t, 53)
		s := serve(t, command(t, w.srv, server[0], server[1:]...), port{w.srv, "udp", 53}, port{w.srv, "tcp", 53})
		observe(t, w.srv)
		for i, p := range programs {
			if !picked(v, i) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				testkit.Program(t, p.line[0])
				args := resolving(t, remoteAddr4, v.program(t, w, nil, p.line...).Args...)
				out := succeed(t, command(t, w.h, args[0], args[1:]...))
				p.check(t, out)
			})
		}
		checkAllFrom(t, queriesOf(t, s), sourceAddr4)
	})
}

var dnsmasqQuery = regexp.MustCompile(`query\[\S+\] \S+ from (\S+)`)

// queriesOf are the clients that dnsmasq has logged.
func queriesOf(t *testing.T, s *server) []string {
	t.Helper()
	var clients []string
	for _, found := range dnsmasqQuery.FindAllStringSubmatch(s.printed(t), -1) {
		clients = append(clients, found[1])
	}
	return clients
}

func sorted(lines string) []string {
	all := strings.Split(lines, "\n")
	slices.Sort(all)
	return all
}

// TestNameServer has dnsmasq serve the remote.
func TestNameServer(t *testing.T) {
	t.Parallel()
	const number = 5353
	testkit.Program(t, "dig")
	tests := []struct {
		name       string
		args       []string
		transports []string
	}{
		{"address", []string{"--bind-interfaces", "--listen-address=" + hostAddr4}, []string{"+notcp", "+tcp"}},
		// It refuses TCP to addresses that no interface of its namespace has.
		{"any-address", nil, []string{"+notcp"}},
	}
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				line := append(dnsmasq(t, number), test.args...)
				s := serve(t, v.program(t, w, []int{number}, line...), port{w.h, "udp", number}, port{w.h, "tcp", number})
				for _, transport := range test.transports {
					dig := command(t, w.srv, "dig", "+short", "+time=30", transport, "-p", fmt.Sprint(number), "@"+hostAddr4, serverName)
					if out := succeed(t, dig); out != remoteAddr4+"\n" {
						t.Errorf("%s: got %q", transport, out)
					}
				}
				checkAllFrom(t, queriesOf(t, s), remoteAddr4)
			})
		}
	})
}

// TestOwnResolver has programs ask a name server of their own container by its
// loopback, as stub resolvers and some container engines have it.
func TestOwnResolver(t *testing.T) {
	t.Parallel()
	programs := resolverTests(t)
	const script = `"$@" >&2 &
until getent ahosts ` + serverName + ` >/dev/null; do sleep 0.02; done
`
	all := inModes(t.Name(), both)
	picked := cover(all, len(programs), func(v variant, i int) bool { return programs[i].by != "static" || !v.mode.preloaded })
	each(t, all, func(t *testing.T, w *world, v variant) {
		observe(t, w.srv)
		for i, p := range programs {
			if !picked(v, i) {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				testkit.Program(t, p.line[0])
				server := append(dnsmasq(t, 53), "--bind-interfaces", "--listen-address=127.0.0.1")
				sh := append([]string{"sh", "-e", "-c", script + quoted(p.line), "sh"}, server...)
				args := resolving(t, "127.0.0.1", v.program(t, w, nil, sh...).Args...)
				p.check(t, succeed(t, command(t, w.h, args[0], args[1:]...)))
			})
		}
	})
}

// quoted is a command for sh.
func quoted(line []string) string {
	var words []string
	for _, word := range line {
		words = append(words, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}

// The stub of the host, at an address of its loopback, answers by one flag.
func TestResolverOfHostsLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := append(dnsmasq(t, 53), "--listen-address=127.0.0.53", "--bind-interfaces")
	s := serve(t, command(t, w.h, server[0], server[1:]...), port{w.h, "udp", 53}, port{w.h, "tcp", 53})
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			args := resolving(t, "127.0.0.53", v.run(t, w, "--dns", "host", "--", "getent", "ahostsv4", serverName).Args...)
			if out := succeed(t, command(t, w.h, args[0], args[1:]...)); !strings.HasPrefix(out, remoteAddr4+" ") {
				t.Errorf("printed %q", out)
			}
			args = resolving(t, "127.0.0.53", v.run(t, w, "--dns", "host", "--", "dig", "+short", "+tcp", serverName).Args...)
			if out := succeed(t, command(t, w.h, args[0], args[1:]...)); out != remoteAddr4+"\n" {
				t.Errorf("over TCP: %q", out)
			}
		})
	}
	checkAllFrom(t, queriesOf(t, s), "127.0.0.1")
}
